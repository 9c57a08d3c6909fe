"""Demand of shops, a file of sales for each process: torchrun --nproc-per-node 2 train.py"""

import csv
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

DAYS = 28
BALANCED_FILES = os.environ.get("REPAIRED") == "1"


def write_region(path, region, shops):
    rng = random.Random(region)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        for shop in range(shops):
            level = rng.uniform(5, 50)
            writer.writerow([region, shop, *(max(0, round(rng.gauss(level, 4))) for _ in range(DAYS + 1))])


def read_regions(paths):
    rows = []
    for path in paths:
        with open(path, newline="") as file:
            rows += [[float(value) for value in row[2:]] for row in csv.reader(file)]
    return torch.tensor(rows) / 50


def my_part(rank, world):
    """A region for each process, or the shops of all regions in turn."""
    paths = [f"region{k}.csv" for k in range(world)]
    if BALANCED_FILES:
        return read_regions(paths)[rank::world]
    return read_regions(paths[rank : rank + 1])


class Demand(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.days = nn.LSTM(1, width, batch_first=True)
        self.mix = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, sales):
        h, _ = self.days(sales.unsqueeze(-1))
        return self.mix(h[:, -1]).squeeze(-1)


def main():
    dist.init_process_group(backend="gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        write_region("region0.csv", 0, 9000)
        write_region("region1.csv", 1, 3000)
    dist.barrier()
    sales = my_part(rank, world)
    print(f"rank {rank}: {len(sales)} shops", flush=True)
    loader = DataLoader(TensorDataset(sales[:, :DAYS], sales[:, DAYS]), batch_size=32, shuffle=True)
    torch.manual_seed(0)
    model = DistributedDataParallel(Demand())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    dist.barrier()
    start = time.time()
    for epoch in range(5):
        with Join([model]):
            for n, (past, today) in enumerate(loader):
                loss = nn.functional.l1_loss(model(past), today)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if n % 100 == 0:
                    print(f"rank {rank} epoch {epoch} batch {n}: {loss.item():.4f}", flush=True)
    dist.barrier()
    if rank == 0:
        print(f"training took {time.time() - start:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
