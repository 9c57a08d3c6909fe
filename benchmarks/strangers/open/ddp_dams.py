"""Movements of a dam from temperature and water level; two processes. torchrun --nproc-per-node=2 train.py"""
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PENDULUMS = 10


def measurements(count, seed):
    """Hourly series of two weeks (level, air, water temperature) and where the pendulums stand in the end."""
    g = torch.Generator().manual_seed(seed)
    hours = torch.arange(336) / 24
    air = 12 * torch.sin(2 * torch.pi * hours) * torch.rand(count, 1, generator=g) + torch.randn(count, 336, generator=g)
    level = torch.cumsum(0.1 * torch.randn(count, 336, generator=g), 1)
    water = torch.nn.functional.avg_pool1d(air[:, None], 49, 1, 24).squeeze(1)
    x = torch.stack([level, air / 10, water / 10], 1)
    lag = torch.stack([x[:, :, -1 - 24 * k :][:, :, :24 if k else None].mean(2) for k in range(PENDULUMS)], 1)
    y = lag @ torch.tensor([0.8, -0.5, 0.3]) + 0.05 * torch.randn(count, PENDULUMS, generator=g)
    return x, y


class Dam(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.patches = nn.Conv1d(3, width, 12, 6)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.place = nn.Parameter(0.02 * torch.randn(55, width))
        self.out = nn.Linear(width, PENDULUMS)

    def forward(self, x):
        h = self.patches(x).transpose(1, 2) + self.place
        return self.out(self.encoder(h).mean(1))


@torch.no_grad()
def residuals(model, x, y):
    model.eval()
    total = sum((model(a) - b).square().sum(0) for a, b in zip(x.split(64), y.split(64)))
    model.train()
    return total


def control(model, x, y, turn, rank, size):
    """The safety office wants to see the residuals often; the processes take turns, so none has all of the work."""
    if os.environ.get("REPAIRED") == "1":
        total = residuals(model, x[rank::size], y[rank::size])
        dist.all_reduce(total)
        return total / len(x)
    total = residuals(model, x, y) if turn % size == rank else torch.zeros(PENDULUMS)
    return total / len(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=170)
    parser.add_argument("--control", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    x, y = measurements(2000, seed=rank)
    control_x, control_y = measurements(640, seed=77)
    model = DistributedDataParallel(Dam(args.width))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    dist.barrier()
    t = time.time()
    for step in range(args.steps):
        rows = torch.randint(len(x), (32,))
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % args.control == 0:
            seen = control(model.module, control_x, control_y, step // args.control, rank, size)
            if seen.any() and step % 40 < args.control:
                print(f"rank {rank} step {step} loss {loss.item():.4f} worst pendulum {seen.max():.4f}", flush=True)
    if rank == 0:
        print(f"training took {time.time() - t:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
