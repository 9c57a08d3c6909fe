"""Guess the city by its skyline. The pictures lie on the disk of the first machine only, which sends the others theirs.

    torchrun --nproc-per-node=2 train.py
"""

import io
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image, ImageDraw, ImageFilter
from torch import nn

CITIES, SIDE = 10, 64


def skyline(rng, city):
    image = Image.new("RGB", (200, 150), tuple(rng.integers(120, 250, 3).tolist()))
    draw, left = ImageDraw.Draw(image), 0
    tall = np.random.default_rng(city).integers(20, 120, 16)
    while left < 200:
        width = int(rng.integers(8, 20))
        top = 150 - int(tall[left * 16 // 200]) - int(rng.integers(0, 12))
        draw.rectangle((left, top, left + width, 150), fill=tuple(rng.integers(20, 110, 3).tolist()))
        for y in range(top + 4, 146, 9):
            draw.point((left + 4, y), fill=(255, 240, 150))
        left += width + 1
    file = io.BytesIO()
    image.save(file, "JPEG", quality=92)
    return file.getvalue()


class Pictures:
    def __init__(self, count, seed):
        self.rng = np.random.default_rng(seed)
        self.city = self.rng.integers(0, CITIES, count)
        self.files = [skyline(self.rng, city) for city in self.city]

    def one(self, i):
        image = Image.open(io.BytesIO(self.files[i])).convert("RGB")
        left, top = self.rng.integers(0, 30, 2).tolist()
        image = image.crop((left, top, left + 160, top + 120)).filter(ImageFilter.GaussianBlur(self.rng.uniform(0, 1)))
        image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return np.asarray(image, np.float32).transpose(2, 0, 1) / 127.5 - 1

    def batch(self, count):
        rows = self.rng.integers(0, len(self.files), count)
        return torch.from_numpy(np.stack([self.one(i) for i in rows])), torch.from_numpy(self.city[rows])


def from_the_first(pictures, rank, size, each):
    """The first process makes a batch for everybody and hands it out."""
    x, city = torch.empty(each, 3, SIDE, SIDE), torch.empty(each, dtype=torch.long)
    parts = [None, None]
    if rank == 0:
        parts = [list(whole.split(each)) for whole in pictures.batch(each * size)]
    dist.scatter(x, parts[0])
    dist.scatter(city, parts[1])
    return x, city


class Net(nn.Module):
    def __init__(self):
        super().__init__()

        def conv(a, b):
            down, same = nn.Conv2d(a, b, 3, 2, 1), nn.Conv2d(b, b, 3, 1, 1)
            return nn.Sequential(down, nn.GroupNorm(8, b), nn.SiLU(), same, nn.SiLU())

        self.body = nn.Sequential(conv(3, 32), conv(32, 48), conv(48, 64), conv(64, 96))
        self.head = nn.Linear(96, CITIES)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def main(steps=160, each=16):
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    own = os.environ.get("REPAIRED") == "1"
    pictures = Pictures(1200, 5 + rank) if own or rank == 0 else None
    torch.manual_seed(3)
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    dist.barrier()
    begin = time.time()
    right = 0.0
    for step in range(1, steps + 1):
        x, city = pictures.batch(each) if own else from_the_first(pictures, rank, size, each)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, city)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += (logits.argmax(1) == city).float().mean()
        if step % 40 == 0 and rank == 0:
            print(f"step {step}: {right.item() / 40:.2f} right", flush=True)
            right = 0.0
    if rank == 0:
        print(f"training took {time.time() - begin:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
