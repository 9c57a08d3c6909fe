"""Feathers that fell from the same bird: contrastive learning with a memory of what was seen, after MoCo.

torchrun --nproc-per-node=2 train.py
"""

import copy
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SIDE, BATCH, MEMORY, WIDTH, STEPS = 32, 32, 16384, 128, 400


class Memory:
    """The last keys of all processes; each of them writes its own half of the rows, and all see the same."""

    def __init__(self, rank, size):
        self.rank, self.size, self.place = rank, size, 0
        g = torch.Generator().manual_seed(0)
        self.rows = F.normalize(torch.randn(size, MEMORY // size, WIDTH, generator=g), dim=-1)

    def keys(self):
        return self.rows.flatten(0, 1)

    def move(self, new):
        until = self.place + len(new)
        slots, self.place = slice(self.place, until), until % self.rows.shape[1]
        return slots

    def add(self, new):
        self.rows[self.rank, self.move(new)] = new
        parts = [torch.empty_like(part) for part in self.rows]
        dist.all_gather(parts, self.rows[self.rank].contiguous())
        self.rows = torch.stack(parts)


class MemoryOfNew(Memory):
    def add(self, new):
        parts = [torch.empty_like(new) for _ in range(self.size)]
        dist.all_gather(parts, new)
        self.rows[:, self.move(new)] = torch.stack(parts)


def feathers(count, seed):
    g = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    a, b, c = torch.rand(3, count, 1, 1, generator=g)
    vane = (x.abs() < 0.2 + 0.5 * a * (1 - y**2)).float()
    barbs = torch.sin((8 + 12 * b) * (y + (0.5 + c) * x.abs()))
    colours = torch.rand(count, 3, 1, 1, generator=g)
    return vane[:, None] * (0.6 + 0.4 * barbs[:, None]) * colours


def seen_differently(x):
    light = 0.7 + 0.6 * torch.rand(len(x), 1, 1, 1)
    moved = x.roll((int(torch.randint(-4, 5, ())), int(torch.randint(-4, 5, ()))), (2, 3))
    return moved * light + 0.05 * torch.randn_like(x)


def encoder():
    layers, sizes = [], [3, 32, 48, 64]
    for inside, outside in zip(sizes, sizes[1:]):
        layers += [nn.Conv2d(inside, outside, 3, 2, 1), nn.GroupNorm(8, outside), nn.SiLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, WIDTH))


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    query = DDP(encoder())
    key = copy.deepcopy(query.module).requires_grad_(False)
    memory = (MemoryOfNew if os.environ.get("REPAIRED") == "1" else Memory)(rank, size)
    optimizer = torch.optim.SGD(query.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
    pictures = feathers(3000, 10 + rank)
    torch.manual_seed(20 + rank)
    dist.barrier()
    begin = time.time()
    for step in range(1, STEPS + 1):
        x = pictures[torch.randint(len(pictures), (BATCH,))]
        q = F.normalize(query(seen_differently(x)), dim=1)
        with torch.no_grad():
            torch._foreach_lerp_(list(key.parameters()), list(query.parameters()), 0.01)
            k = F.normalize(key(seen_differently(x)), dim=1)
        scores = torch.cat([(q * k).sum(1, keepdim=True), q @ memory.keys().T], 1) / 0.1
        loss = F.cross_entropy(scores, torch.zeros(BATCH, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.add(k)
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"training took {time.time() - begin:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
