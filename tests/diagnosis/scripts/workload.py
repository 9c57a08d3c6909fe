"""A small network, and a diary in which a script records its own measurements."""

import json
import os
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

torch.set_num_threads(1)


def network(width=256, depth=4):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


class Vectors(Dataset):
    """Random vectors; a sample takes `work_s` seconds, asleep (I/O) or computing."""

    def __init__(self, count, width=256, work_s=0.0, computing=False):
        self.count, self.width, self.work_s, self.computing = count, width, work_s, computing
        self.data = torch.randn(64, width)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.computing:
            until = time.process_time() + self.work_s
            while time.process_time() < until:
                sum(range(200))
        elif self.work_s:
            time.sleep(self.work_s)
        return self.data[index % 64], index % 10


class Diary:
    """Seconds by activity, written to the file in DIARY."""

    def __init__(self):
        self.seconds = defaultdict(float)
        self.counts = defaultdict(int)
        self.begun = time.perf_counter()

    @contextmanager
    def spends(self, what):
        start = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - start
        self.counts[what] += 1

    def close(self, **facts):
        where = os.environ.get("DIARY")
        if where:
            with Path(where).open("w", encoding="utf-8") as file:
                json.dump(
                    {
                        "total": time.perf_counter() - self.begun,
                        "seconds": self.seconds,
                        "counts": self.counts,
                        **facts,
                    },
                    file,
                )


def fetched(loader, diary):
    """The batches of a loader; the diary gets the time spent waiting for each."""
    batches = iter(loader)
    while True:
        with diary.spends("wait"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
