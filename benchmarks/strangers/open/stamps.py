"""Which issue is a stamp? Scans as JPEGs, 120 issues, a small convolutional network, precision and recall of each issue."""

import io
import os
import random
import time
from collections import defaultdict

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset

ISSUES, SIDE = 120, 48
FIXED = os.environ.get("REPAIRED") == "1"


def scan(issue, rng):
    """Frame, portrait (an ellipse) and postmark."""
    style = np.random.default_rng(issue)
    paper, ink, head = style.integers(60, 255, (3, 3))
    y, x = np.mgrid[-1:1:96j, -1:1:96j]
    picture = np.where((np.maximum(abs(x), abs(y)) > style.uniform(0.6, 0.9))[..., None], ink, paper).astype(float)
    rx, ry = style.uniform(0.2, 0.6, 2)
    picture[(x / rx) ** 2 + (y / ry) ** 2 < 1] = head
    cx, cy = rng.uniform(-1, 1, 2)
    picture[abs(np.hypot(x - cx, y - cy) - 0.5) < 0.05] *= 0.3
    picture += rng.normal(0, 15, picture.shape)
    file = io.BytesIO()
    Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


class Stamps(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.issues = rng.integers(0, ISSUES, n)
        self.files = [scan(i, rng) for i in self.issues]

    __len__ = lambda self: len(self.files)

    def __getitem__(self, i):
        picture = Image.open(io.BytesIO(self.files[i])).convert("RGB")
        picture = picture.rotate(random.uniform(-12, 12), Image.Resampling.BICUBIC)
        picture = ImageEnhance.Brightness(picture).enhance(random.uniform(0.7, 1.3))
        picture = picture.filter(ImageFilter.GaussianBlur(random.uniform(0, 1)))
        picture = picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255, int(self.issues[i])


class Decoded:
    """All scans in memory; a batch is rotated at once."""

    def __init__(self, stamps, batch):
        pictures = [Image.open(io.BytesIO(f)).resize((SIDE, SIDE), Image.Resampling.LANCZOS) for f in stamps.files]
        self.x = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
        self.y, self.batch = torch.from_numpy(stamps.issues), batch

    def __iter__(self):
        for rows in torch.randperm(len(self.x)).split(self.batch):
            a = (torch.rand(len(rows)) - 0.5) * 0.4
            zero = torch.zeros_like(a)
            turn = torch.stack([a.cos(), -a.sin(), zero, a.sin(), a.cos(), zero], 1).view(-1, 2, 3)
            x = self.x[rows].float() / 255
            x = F.grid_sample(x, F.affine_grid(turn, x.shape, align_corners=False), align_corners=False)
            yield (x * (0.7 + 0.6 * torch.rand(len(rows), 1, 1, 1))).clamp(0, 1), self.y[rows]


class Scores:
    def __init__(self):
        self.tp, self.fp, self.fn = defaultdict(int), defaultdict(int), defaultdict(int)
        self.table = torch.zeros(ISSUES * ISSUES, dtype=torch.long)

    def update(self, logits, y):
        guess = logits.argmax(1)
        if FIXED:
            self.table += torch.bincount(y * ISSUES + guess, minlength=ISSUES * ISSUES)
            return
        for issue in range(ISSUES):
            self.tp[issue] += ((guess == issue) & (y == issue)).sum().item()
            self.fp[issue] += ((guess == issue) & (y != issue)).sum().item()
            self.fn[issue] += ((guess != issue) & (y == issue)).sum().item()

    def f1(self):
        if FIXED:
            table = self.table.view(ISSUES, ISSUES)
            hit = table.diag()
            return (2 * hit / (table.sum(0) + table.sum(1)).clamp(min=1)).mean().item()
        return np.mean([2 * self.tp[i] / max(1, 2 * self.tp[i] + self.fp[i] + self.fn[i]) for i in range(ISSUES)])


def network(w=16):
    def conv(a, b, s):
        return nn.Sequential(nn.Conv2d(a, b, 3, s, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))

    return nn.Sequential(conv(3, w, 1), conv(w, 2 * w, 2), conv(2 * w, 4 * w, 2), conv(4 * w, 4 * w, 1), conv(4 * w, 8 * w, 2),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * w, ISSUES))


if __name__ == "__main__":
    random.seed(torch.manual_seed(12).initial_seed())
    stamps = Stamps(3200, 1)
    loader = Decoded(stamps, 32) if FIXED else DataLoader(stamps, 32, shuffle=True)
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    start = time.perf_counter()
    for epoch in range(2):
        scores = Scores()
        for x, y in loader:
            logits = net(x)
            loss = F.cross_entropy(logits, y, label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scores.update(logits.detach(), y)
        print(f"epoch {epoch}: loss {loss.item():.3f}, macro F1 {scores.f1():.3f}", flush=True)
    print(f"training took {time.perf_counter() - start:.2f} s")
