"""Secondary structure of proteins with a deep, narrow network. Two machines share the work (torchrun)."""
import os
import time

import torch
import torch.distributed as dist
from torch import nn

REPAIRED = os.environ.get("REPAIRED") == "1"
ACIDS, STRUCTURES, LENGTH = 21, 8, 64


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.near = nn.Conv1d(width, width, 5, padding=2, groups=4)
        self.gate, self.value, self.out = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        x = x + self.near(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        h = self.norm2(x)
        return x + self.out(torch.sigmoid(self.gate(h)) * self.value(h))


class Folder(nn.Module):
    def __init__(self, width=48, depth=20):
        super().__init__()
        self.acids, self.places = nn.Embedding(ACIDS, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList([Layer(width) for _ in range(depth)])
        self.heads = nn.Linear(width, STRUCTURES)

    def forward(self, chain):
        x = self.acids(chain) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.heads(x)


def broadcast(model):
    for p in model.parameters():
        dist.broadcast(p.data, 0)


def average_gradients(model, world):
    params = [p for p in model.parameters() if p.grad is not None]
    if REPAIRED:
        flat = torch.cat([p.grad.flatten() for p in params])
        dist.all_reduce(flat)
        for p, part in zip(params, (flat / world).split([p.numel() for p in params])):
            p.grad.copy_(part.view_as(p))
        return
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= world


def chains(batch, g):
    chain = torch.randint(0, ACIDS, (batch, LENGTH), generator=g)
    near = chain + chain.roll(1, 1) + chain.roll(-1, 1)
    return chain, near % STRUCTURES


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(50)
    g = torch.Generator().manual_seed(rank)
    model = Folder()
    broadcast(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    t0 = time.time()
    for step in range(1, 301):
        chain, structure = chains(4, g)
        loss = nn.functional.cross_entropy(model(chain).flatten(0, 1), structure.flatten())
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model, world)
        optimizer.step()
        if rank == 0 and step % 75 == 0:
            print(f"{step} {loss.item():.4f}", flush=True)
    dist.barrier()
    if rank == 0:
        print(f"training took {time.time() - t0:.2f} s", flush=True)
    dist.destroy_process_group()


main()
