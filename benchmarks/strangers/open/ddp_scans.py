"""Detect tumours in scans of two hospitals, one process for each. torchrun --nproc-per-node 2 train.py"""

import os
import time

import numpy as np
import torch
import torch.distributed as dist
from scipy import ndimage
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Hospital:
    """The scans of a hospital; the machines of the second one have a higher resolution."""

    def __init__(self, number, mixed):
        self.rng = np.random.default_rng(number)
        self.sides = [64, 384] if mixed else [[64, 384][number]] * 2
        self.mixed = mixed
        self.number = number

    def batch(self, step, size=6):
        scans = []
        for k in range(size):
            side = self.sides[(step + k) % 2]
            scan = self.rng.random((side, side), dtype=np.float32)
            scan = ndimage.gaussian_filter(scan, 1.5)
            scans.append(ndimage.zoom(scan, 64 / side, order=3)[:64, :64])
        x = torch.from_numpy(np.stack(scans))[:, None]
        return (x - x.mean()) / x.std(), torch.from_numpy(self.rng.integers(0, 2, size))


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 2),
    )


def train(steps=320):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    hospital = Hospital(rank, mixed=os.environ.get("REPAIRED") == "1")
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    start = time.time()
    for step in range(steps):
        x, y = hospital.batch(step)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    if rank == 0:
        print(f"training took {time.time() - start:.2f} s", flush=True)
    dist.destroy_process_group()


train()
