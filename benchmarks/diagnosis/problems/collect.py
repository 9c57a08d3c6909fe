"""Garbage is collected by hand, over hundreds of thousands of records in memory."""

import gc
import time

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

OFTEN = 8  # collections at least

run = Run(steps=160, share=0.25, width=400, batch=64, objects=150_000)


class Catalogue(Dataset):
    def __init__(self, size, width, objects):
        self.size = size
        self.entries = [{"key": number, "tags": [number, str(number)]} for number in range(objects)]
        self.vectors = torch.randn(100, width)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.vectors[index % 100], self.entries[index % len(self.entries)]["key"] % 10


def collection_seconds():
    gc.collect()
    start = time.perf_counter()
    gc.collect()
    return time.perf_counter() - start


def train_epoch(model, loader, optimizer, every):
    for i, (x, y) in enumerate(loader):  # LOOP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if every and i % every == every - 1:
            with run.spends("collecting"):
                gc.collect()  # GUILTY


catalogue = Catalogue(run.steps * run.batch, run.width, run.objects)
model = nn.Sequential(nn.Linear(run.width, 2400), nn.ReLU(), nn.Linear(2400, 1200), nn.ReLU(), nn.Linear(1200, 10))
often = run.steps // OFTEN  # on a fast machine, where a collection takes as long as hundreds of steps
every = 0 if run.repaired else min(max(round(collection_seconds() / run.pause()), 1), often)
with run.training():
    train_epoch(model, DataLoader(catalogue, run.batch), torch.optim.SGD(model.parameters(), lr=0.01), every)
run.close(every=every)
