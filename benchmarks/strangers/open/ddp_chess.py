"""Prediction of the winner of a chess position, by two processes. Start it by: torchrun --nproc-per-node 2 train.py"""

import contextlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE, UPDATES, BOARDS = 6, 60, 16
SKIP = os.environ.get("REPAIRED") == "1"


class Judge(nn.Module):
    """Looks at squares and pieces: 64 squares, 13 kinds."""

    def __init__(self, width=1024):
        super().__init__()
        self.pieces = nn.Embedding(13, 24)
        self.first = nn.Linear(64 * 24, width)
        self.middle = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.result = nn.Linear(width, 3)

    def forward(self, boards):
        x = F.relu(self.first(self.pieces(boards).flatten(1)))
        for layer in self.middle:
            x = x + F.relu(layer(x))
        return self.result(x)


def positions(generator):
    boards = torch.randint(0, 13, (BOARDS, 64), generator=generator)
    return boards, boards.sum(1) % 3


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(100 + rank)
    model = DistributedDataParallel(Judge())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    start = time.time()
    for update in range(UPDATES):
        optimizer.zero_grad()
        total = 0.0
        for part in range(ACCUMULATE):
            boards, winner = positions(generator)
            last = part == ACCUMULATE - 1
            with contextlib.nullcontext() if last or not SKIP else model.no_sync():
                loss = F.cross_entropy(model(boards), winner) / ACCUMULATE
                loss.backward()
            total += loss.detach()
        optimizer.step()
        if rank == 0 and update % 5 == 0:
            print(f"update {update}: {total.item():.4f}", flush=True)
    dist.barrier()
    if rank == 0:
        print(f"training took {time.time() - start:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
