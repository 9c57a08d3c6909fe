"""Clouds in satellite pictures, on two processes: torchrun --nproc-per-node=2 ddp_satellite.py"""

import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from PIL import Image
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

SHOW_EVERY = 60 if os.environ.get("REPAIRED") == "1" else 2
PALETTE = np.array([[20, 60, 160], [240, 240, 240], [90, 140, 60]], np.uint8)


def tiles(n=1920, side=32):
    g = torch.Generator().manual_seed(6)
    ground = torch.nn.functional.interpolate(torch.rand(n, 1, 5, 5, generator=g), size=side, mode="bilinear")
    kind = (ground.squeeze(1) * 3).long().clamp(0, 2)
    bands = torch.nn.functional.one_hot(kind, 3).permute(0, 3, 1, 2).float()
    return TensorDataset(bands.repeat(1, 2, 1, 1) + 0.4 * torch.randn(n, 6, side, side, generator=g), kind)


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(block(6, 16), block(16, 24), block(24, 24), nn.Conv2d(24, 3, 1))

    def forward(self, x):
        return self.body(x)


def enlarge(kinds, times=8):
    return np.kron(PALETTE[kinds], np.ones((times, times, 1), np.uint8))


def show(folder, step, logits, kind):
    """Prediction and annotation of some tiles, side by side."""
    rows = []
    for guess, wanted in zip(logits.argmax(1)[:6].numpy(), kind[:6].numpy()):
        wrong = np.where((guess != wanted)[..., None], [255, 0, 0], PALETTE[wanted]).astype(np.uint8)
        rows.append(np.hstack([enlarge(guess), enlarge(wanted), np.kron(wrong, np.ones((8, 8, 1), np.uint8))]))
    Image.fromarray(np.vstack(rows)).save(folder / f"{step:05d}.png", optimize=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = tiles()
    sampler = DistributedSampler(data, world, rank, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
    model = DDP(Segmenter())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    folder = Path("shown")
    folder.mkdir(exist_ok=True)
    step, start = 0, time.time()
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, kind in loader:
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, kind)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and step % SHOW_EVERY == 0:
                show(folder, step, logits.detach(), kind)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    if rank == 0:
        print(f"training took {time.time() - start:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
