"""Land use from satellite tiles on two processes: torchrun --nproc-per-node 2 train.py"""

import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("tiles")


def tiles(n, seed, classes=8, bands=6, side=24):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    means = torch.randn(classes, bands, generator=torch.Generator().manual_seed(0))
    return TensorDataset(torch.randn(n, bands, side, side, generator=g) + means[y][:, :, None, None] / 4, y)


class LandUse(nn.Module):
    def __init__(self, bands=6, classes=8, width=32):
        super().__init__()
        self.stem = nn.Conv2d(bands, width, 3, padding=1)
        self.stage1 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.stage2 = nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(8, c) for c in (width, 2 * width, 2 * width))
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x):
        for conv, norm in zip((self.stem, self.stage1, self.stage2), self.norms):
            x = F.relu(norm(conv(x)))
        return self.fc(x.mean(dim=(2, 3)))


def accuracy(model, loader):
    """Each process counts its share of the held-out tiles."""
    counts = torch.zeros(2)
    model.eval()
    with torch.inference_mode():
        for x, y in loader:
            counts += torch.tensor([(model.module(x).argmax(1) == y).sum(), len(y)])
    model.train()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def setup():
    dist.init_process_group("gloo")
    torch.manual_seed(40)
    logging.basicConfig(level=logging.INFO if int(os.environ["RANK"]) == 0 else logging.WARNING)
    return dist.get_rank(), dist.get_world_size()


def run(epochs=3, batch=32):
    rank, world = setup()
    train, test = tiles(6400, 1), tiles(256, 2)
    sampler = DistributedSampler(train, world, rank, shuffle=True)
    loader = DataLoader(train, batch, sampler=sampler, drop_last=True)
    held_out = DataLoader(test, 64, sampler=DistributedSampler(test, world, rank, shuffle=False))
    model = DDP(LandUse(), bucket_cap_mb=8, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    tic = time.time()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        log.info("epoch %d: loss %.3f, accuracy %.3f", epoch, total.item() / len(loader), accuracy(model, held_out))
    dist.barrier()
    if rank == 0:
        print(f"training took {time.time() - tic:.2f} s", flush=True)
    dist.destroy_process_group()


run()
