"""Predict how long a bolt of cloth takes to weave: a deep MLP on two processes, after the tutorial "Writing distributed
applications with PyTorch". torchrun --nproc-per-node 2 train.py
"""

import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

COLUMNS, DEPTH, BATCH, STEPS = 40, 12, 256, 110


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x):
        return x + self.scale * self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.first = nn.Linear(COLUMNS, width)
        self.layers = nn.ModuleList([Layer(width) for _ in range(DEPTH)])
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x).squeeze(1)


def bolts(n):
    g = torch.Generator().manual_seed(77)
    x = torch.randn(n, COLUMNS, generator=g)
    y = x[:, 0] * x[:, 1].sigmoid() + (x[:, 2:6].sum(1) / 2).tanh() + x[:, 7].abs() + 0.1 * torch.randn(n, generator=g)
    return x, y


def average_gradients(model):
    size = float(dist.get_world_size())
    if os.environ.get("REPAIRED") == "1":
        gradients = [param.grad for param in model.parameters()]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, op=dist.ReduceOp.SUM)
        flat /= size
        for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
            gradient.copy_(part.view_as(gradient))
        return
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size


def run(rank, size):
    torch.manual_seed(1234)
    x, y = bolts(20_000)
    x, y = x[rank::size], y[rank::size]
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    order = torch.Generator().manual_seed(rank)
    dist.barrier()
    start = time.time()
    epoch_loss = 0.0
    for step in range(1, STEPS + 1):
        rows = torch.randint(0, len(x), (BATCH,), generator=order)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[rows]), y[rows])
        epoch_loss += loss.item()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        if step % 50 == 0:
            print("Rank", dist.get_rank(), ", step", step, ":", round(epoch_loss / 50, 4), flush=True)
            epoch_loss = 0.0
    if rank == 0:
        print("training took %.2f s" % (time.time() - start), flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    run(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()
