"""Which style is a tattoo? JPEGs from studios, a small ConvNeXt. torchrun --nproc-per-node=2 train.py"""

import io
import os
import random
import time

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

STYLES, SIDE, TOGETHER = 6, 64, 32


def draw(rnd, style):
    skin = tuple(rnd.randint(150, 230) for _ in range(3))
    image = Image.new("RGB", (340, 340), skin)
    pen = ImageDraw.Draw(image)
    x, y = 170, 170
    for _ in range(14 + 4 * style):
        ink = (20, 20, 30) if style % 2 else tuple(rnd.randint(0, 200) for _ in range(3))
        to = (x + rnd.randint(-100, 100), y + rnd.randint(-100, 100))
        if style < 3:
            pen.line([(x, y), to], fill=ink, width=2 + 3 * style)
        else:
            pen.ellipse([min(x, to[0]), min(y, to[1]), max(x, to[0]) + 2, max(y, to[1]) + 2], outline=ink, width=style)
        x, y = (max(20, min(320, v)) for v in to)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=92)
    return file.getvalue()


class Tattoos(Dataset):
    def __init__(self, count):
        rnd = random.Random(99)
        self.style = [rnd.randrange(STYLES) for _ in range(count)]
        self.files = [draw(rnd, style) for style in self.style]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        rnd = random.Random(torch.randint(2**31, ()).item())
        image = Image.open(io.BytesIO(self.files[i])).convert("RGB")
        image = image.rotate(rnd.uniform(-40, 40), Image.Resampling.BICUBIC)
        image = ImageEnhance.Contrast(image).enhance(rnd.uniform(0.6, 1.4))
        image = image.filter(ImageFilter.GaussianBlur(rnd.uniform(0, 1.5))).resize((SIDE, SIDE))
        return torch.from_numpy(np.asarray(image, np.float32).transpose(2, 0, 1) / 127.5 - 1), self.style[i]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.GroupNorm(1, width)
        self.feed = nn.Sequential(nn.Conv2d(width, 3 * width, 1), nn.GELU(), nn.Conv2d(3 * width, width, 1))

    def forward(self, x):
        return x + self.feed(self.norm(self.mix(x)))


def network():
    return nn.Sequential(
        nn.Conv2d(3, 32, 4, 4), Block(32), Block(32), nn.Conv2d(32, 64, 2, 2), Block(64), Block(64), Block(64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, STYLES))  # fmt: skip


class Epoch:
    """The same order of rows in every process, as they all start from the same seed."""

    def __init__(self, count, rank, size):
        self.count, self.rank, self.size = count, rank, size
        self.g = torch.Generator().manual_seed(4)

    def __iter__(self):
        for rows in torch.randperm(self.count, generator=self.g).split(TOGETHER):
            yield rows[self.rank :: self.size].tolist()


def main(epochs=2):
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Tattoos(800)
    share = os.environ.get("REPAIRED") == "1"
    batches = Epoch(len(data), rank, size) if share else Epoch(len(data), 0, 1)
    loader = DataLoader(data, batch_sampler=batches)
    model = DDP(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dist.barrier()
    start = time.time()
    for epoch in range(epochs):
        total = torch.zeros(2)
        for x, style in loader:
            if not share:
                x, style = x[rank::size], style[rank::size]
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, style)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.tensor([(logits.argmax(1) == style).sum(), len(style)])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: {total[0] / total[1]:.3f} right", flush=True)
    if rank == 0:
        print(f"training took {time.time() - start:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
