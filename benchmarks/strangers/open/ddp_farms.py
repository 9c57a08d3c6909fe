"""Milk of tomorrow on farms that keep their data: each process is a farm, the weights are averaged (FedAvg).

torchrun --nproc-per-node 2 ddp_farms.py
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=180)
parser.add_argument("--local", type=int, default=10 if os.environ.get("REPAIRED") == "1" else 1, help="steps between two rounds")
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--width", type=int, default=640)


class Farm:
    """Cows with a lactation curve, weather, feed; farms differ in their herds."""

    def __init__(self, number, features=40):
        self.g = torch.Generator().manual_seed(number)
        self.herd = torch.randn(features, generator=self.g)
        self.feed = torch.randn(features, 8, generator=torch.Generator().manual_seed(99)) / features**0.5

    def batch(self, n):
        x = torch.randn(n, len(self.herd), generator=self.g) + 0.3 * self.herd
        day = torch.rand(n, generator=self.g) * 300
        curve = 15 * (day / 60).pow(0.2) * (-day / 200).exp()
        y = curve + (x @ self.feed).sin().sum(1) + 0.2 * torch.randn(n, generator=self.g)
        return torch.cat([x, day[:, None] / 300], 1), y


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width // 2, width)

    def forward(self, x):
        return x + self.out(F.glu(self.into(self.norm(x))))


def milk_model(width, depth=4):
    return nn.Sequential(nn.Linear(41, width), *(Gated(width) for _ in range(depth)), nn.LayerNorm(width), nn.Linear(width, 1))


def average(model, optimizer):
    """The weights of the farms and the state of their optimizers."""
    world = dist.get_world_size()
    with torch.no_grad():
        for p in model.parameters():
            for tensor in (p, optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"]):
                dist.all_reduce(tensor)
                tensor /= world


def main():
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    farm, later = Farm(rank), Farm(10 + rank)
    torch.manual_seed(0)
    model = milk_model(args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    test_x, test_y = later.batch(500)
    dist.barrier()
    start = time.time()
    for step in range(1, args.steps + 1):
        x, y = farm.batch(args.batch)
        loss = F.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.local == 0:
            average(model, optimizer)
        if step % 60 == 0:
            with torch.no_grad():
                error = F.l1_loss(model(test_x).squeeze(1), test_y)
            print(f"farm {rank}, step {step}: litres off {error:.3f}", flush=True)
    if rank == 0:
        print(f"training took {time.time() - start:.2f} s", flush=True)
    dist.destroy_process_group()


main()
