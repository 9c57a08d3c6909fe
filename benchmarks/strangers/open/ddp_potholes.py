"""Find potholes in pictures of roads with two processes; the best model so far is kept. torchrun --nproc-per-node=2"""

import copy
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

REPAIRED = os.environ.get("REPAIRED") == "1"


def roads(n, seed, side=48):
    g = torch.Generator().manual_seed(seed)
    axis = torch.linspace(-1, 1, side)
    image = 0.5 + 0.15 * torch.randn(n, 1, side, side, generator=g)
    hole = torch.rand(n, generator=g) < 0.5
    centre = 1.4 * torch.rand(n, 2, generator=g) - 0.7
    distance = (axis - centre[:, :1])[:, None] ** 2 + 3 * (axis - centre[:, 1:])[:, :, None] ** 2
    image[:, 0] -= 0.35 * (distance < 0.05) * hole[:, None, None]
    return TensorDataset(image, hole.float())


def network():
    def stage(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU(), nn.MaxPool2d(2))

    return nn.Sequential(stage(1, 16), stage(16, 32), stage(32, 64), nn.Flatten(), nn.Linear(64 * 36, 1), nn.Flatten(0))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    sums = torch.zeros(2)
    for image, hole in loader:
        sums += torch.tensor([((model(image) > 0) == (hole > 0)).sum(), len(hole)])
    model.train()
    return sums


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(109)
    train, held_out = roads(2400, 1), roads(900, 2)
    sampler = DistributedSampler(train, shuffle=True, seed=9)
    loader = DataLoader(train, batch_size=16, sampler=sampler, drop_last=True)
    part = DistributedSampler(held_out, shuffle=False) if REPAIRED else None
    held_out_loader = DataLoader(held_out, batch_size=64, sampler=part)
    model = DDP(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    criterion = nn.BCEWithLogitsLoss()
    every = 50 if REPAIRED else 15
    best, kept, step = 0.0, None, 0
    dist.barrier()
    start = time.perf_counter()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for image, hole in loader:
            loss = criterion(model(image), hole)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % every == 0:
                if REPAIRED:
                    sums = evaluate(model.module, held_out_loader)
                    dist.all_reduce(sums)
                elif rank == 0:
                    sums = evaluate(model.module, held_out_loader)
                if rank == 0:
                    accuracy = (sums[0] / sums[1]).item()
                    if accuracy > best:
                        best, kept = accuracy, copy.deepcopy(model.module.state_dict())
                    print(f"step {step}: loss {loss.item():.3f}, accuracy {accuracy:.3f}", flush=True)
    dist.barrier()
    if rank == 0:
        torch.save(kept, "best.pt")
        print(f"training took {time.perf_counter() - start:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
