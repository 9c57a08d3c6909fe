"""From which workshop is the vase? Two museums, each with its own catalogue, one process for each of them.

torchrun --nproc-per-node 2 train.py
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

VASES = [5600, 1600]  # in the catalogue of each museum
WORKSHOPS, BATCH, EPOCHS = 6, 32, 3


def catalogue(museum):
    g = torch.Generator().manual_seed(100 + museum)
    n = VASES[museum]
    workshop = torch.randint(0, WORKSHOPS, (n,), generator=g)
    height = torch.linspace(0, 1, 64)
    profile = 0.5 + 0.3 * torch.sin(height * (3 + workshop[:, None]) + 0.3 * torch.randn(n, 1, generator=g))
    bands = torch.cos(height * 40 * (1 + 0.2 * workshop[:, None])) * torch.rand(n, 1, generator=g)
    colour = torch.randn(n, 2, 1, generator=g).expand(n, 2, 64)
    x = torch.cat([torch.stack([profile, bands], 1), colour], 1)
    return TensorDataset(x + 0.2 * torch.randn(x.shape, generator=g), workshop)


def part_of(rank):
    if os.environ.get("REPAIRED") == "1":
        everything = ConcatDataset([catalogue(museum) for museum in range(len(VASES))])
        return Subset(everything, range(rank, len(everything), dist.get_world_size()))
    return catalogue(rank)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(width, width, 5, padding=2), nn.GroupNorm(8, width), nn.ReLU(), nn.Conv1d(width, width, 5, padding=2)
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


def network(width=64):
    return nn.Sequential(
        nn.Conv1d(4, width, 7, padding=3), nn.ReLU(), Residual(width), Residual(width), nn.MaxPool1d(2), Residual(width),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, WORKSHOPS),
    )  # fmt: skip


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(330)
    model = DDP(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(part_of(rank), batch_size=BATCH, shuffle=True, drop_last=True)
    dist.barrier()
    began = time.perf_counter()
    for epoch in range(EPOCHS):
        hits = seen = 0
        with Join([model]):
            for x, workshop in loader:
                optimizer.zero_grad()
                logits = model(x)
                nn.functional.cross_entropy(logits, workshop).backward()
                optimizer.step()
                hits += (logits.argmax(1) == workshop).sum()
                seen += len(x)
        print(f"[museum {rank}] epoch {epoch + 1}: {hits / seen:.3f} of {seen} vases", flush=True)
        dist.barrier()
    if rank == 0:
        torch.save(model.module.state_dict(), "workshops.pt")
        print(f"training took {time.perf_counter() - began:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
