"""A wide ranking model on two processes with accumulated gradients. torchrun --nproc-per-node 2 train.py"""

import contextlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE = 8
REPAIRED = os.environ.get("REPAIRED") == "1"


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30_000, 128)
        self.tower = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))

    def forward(self, ids):
        return self.tower(self.words(ids).mean(1)).squeeze(1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(Ranker())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    start = time.time()
    for micro in range(1, 321):
        ids = torch.randint(0, 30_000, (96, 24))
        target = ids.float().mean(1) / 30_000
        last = micro % ACCUMULATE == 0
        with model.no_sync() if REPAIRED and not last else contextlib.nullcontext():
            loss = nn.functional.mse_loss(model(ids), target) / ACCUMULATE
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        if micro % 80 == 0 and rank == 0:
            print(f"micro-batch {micro} loss {loss.item() * ACCUMULATE:.5f}", flush=True)
    dist.barrier()
    if rank == 0:
        print(f"training took {time.time() - start:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
