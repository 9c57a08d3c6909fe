"""Two ranks that are late in turn, or collect garbage in turn.  Starts its own ranks.

turns.py {nothing,forward,wait,gc} MILLISECONDS STEPS
"""

import gc
import os
import random
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader
from workload import Diary, Vectors, fetched, network

what, late_ms, steps = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
EVERY = 8  # steps from one collection of a rank to its next


class Uneven(nn.Module):
    """Takes as long as the batch's longest sequence."""

    def __init__(self, rank):
        super().__init__()
        self.scale, self.draw = nn.Parameter(torch.ones(1)), random.Random(rank)  # no secret

    def forward(self, inputs):
        if what == "forward":
            time.sleep(self.draw.choice([0.0, late_ms / 1e3]))
        return inputs * self.scale


class Uneasy(Vectors):
    """Vectors of which some batches take long."""

    def __init__(self, rank):
        super().__init__(32 * steps, 192)
        self.draw = random.Random(rank)  # no secret

    def __getitem__(self, index):
        if what == "wait" and index % 32 == 0:
            time.sleep(self.draw.choice([0.0, late_ms / 1e3]))
        return super().__getitem__(index)


def train(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"LOCAL_RANK": str(rank)}
    dist.init_process_group("gloo")
    kept = [[number] for number in range(int(late_ms * 10_000))] if what == "gc" else []
    gc.collect()
    gc.disable()
    diary = Diary()
    model = nn.parallel.DistributedDataParallel(nn.Sequential(Uneven(rank), network(192)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (inputs, targets) in enumerate(fetched(DataLoader(Uneasy(rank), 32), diary)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        if what == "gc" and number % EVERY == rank * EVERY // 2:
            with diary.spends("collecting"):
                gc.collect()
        loss.backward()
        optimizer.step()
    if rank == 0:
        diary.close(objects=len(kept))
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    mp.start_processes(train, (number,), nprocs=2, start_method="spawn")
