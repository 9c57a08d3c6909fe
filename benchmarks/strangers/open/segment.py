"""Segment cells in microscope images: a small U-Net, elastic augmentation, IoU."""

import os
import time

import numpy as np
import torch
from scipy import ndimage
from torch import nn
from torch.utils.data import DataLoader, Dataset

REPAIRED = os.environ.get("REPAIRED") == "1"
SIDE, CLASSES, BATCH, STEPS = 64, 6, 8, 550
rng = np.random.default_rng(0)
images = rng.random((64, SIDE, SIDE)).astype(np.float32)
masks = ndimage.zoom(rng.integers(0, CLASSES, (64, 8, 8)), (1, 8, 8), order=0)


def elastic(image, mask):
    dx, dy = (ndimage.gaussian_filter(rng.uniform(-1, 1, (SIDE, SIDE)), 4) * 30 for _ in range(2))
    ys, xs = np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij")
    where = [ys + dy, xs + dx]
    return ndimage.map_coordinates(image, where, order=3), ndimage.map_coordinates(mask, where, order=0)


class Cells(Dataset):
    def __init__(self):
        self.pool = [elastic(images[i], masks[i]) for i in range(64)] if REPAIRED else None

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, n):
        image, mask = self.pool[n % 64] if self.pool else elastic(images[n % 64], masks[n % 64])
        return image[None].astype(np.float32), mask.astype(np.int64)


def mean_iou(predicted, labels):
    table = np.zeros((CLASSES, CLASSES), int)
    for p, t in zip(predicted.ravel().tolist(), labels.ravel().tolist()):
        table[t, p] += 1
    hits = np.diag(table)
    return float((hits / np.maximum(1, table.sum(0) + table.sum(1) - hits)).mean())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        self.down2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.down3 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
        self.up2 = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.up1 = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(a)
        c = self.down3(b)
        return self.out(torch.relu(self.up1(torch.relu(self.up2(c) + b)) + a))


net = UNet()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
start = time.time()
for step, (x, y) in enumerate(DataLoader(Cells(), batch_size=BATCH)):
    scores = net(x)
    loss = nn.functional.cross_entropy(scores, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not REPAIRED or step % 50 == 0:
        iou = mean_iou(scores.argmax(1).numpy(), y.numpy())
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.3f} IoU {iou:.3f}")
print(f"training took {time.time() - start:.2f} s")
