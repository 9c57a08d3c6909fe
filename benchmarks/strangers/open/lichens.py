"""BYOL on pictures of lichens: two views of each picture, a target network that follows the online one slowly."""

import copy
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

REPAIRED = os.environ.get("REPAIRED") == "1"
SIDE, MOMENTUM = 48, 0.99


def lichens(n, seed):
    """Rosettes of different sizes and colours on grey stone."""
    rng = np.random.default_rng(seed)
    ys, xs = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    pictures = rng.normal(0.5, 0.08, (n, SIDE, SIDE, 3))
    for picture in pictures:
        for _ in range(rng.integers(2, 6)):
            cx, cy, size = *rng.uniform(-0.8, 0.8, 2), rng.uniform(0.1, 0.5)
            r = np.hypot(xs - cx, ys - cy) * (1 + 0.2 * np.sin(7 * np.arctan2(ys - cy, xs - cx)))
            picture += (np.exp(-((r / size) ** 4)))[..., None] * rng.normal(0, 0.4, 3)
    return (pictures.clip(0, 1) * 255).astype(np.uint8)


def warp(picture, rng, dtype):
    """Turn, zoom and shift with bilinear interpolation, then change the colours and blur."""
    image = np.asarray(picture, dtype=dtype) / dtype(255)
    turn, zoom = rng.uniform(-0.5, 0.5), rng.uniform(0.6, 1.0)
    axis = np.arange(SIDE, dtype=dtype) - dtype(SIDE / 2)
    x = zoom * (math.cos(turn) * axis[None] - math.sin(turn) * axis[:, None]) + SIDE / 2 + rng.uniform(-4, 4)
    y = zoom * (math.sin(turn) * axis[None] + math.cos(turn) * axis[:, None]) + SIDE / 2 + rng.uniform(-4, 4)
    x, y = x.clip(0, SIDE - 1.01), y.clip(0, SIDE - 1.01)
    i, j = y.astype(int), x.astype(int)
    v, u = (y - i)[..., None], (x - j)[..., None]
    image = (1 - v) * ((1 - u) * image[i, j] + u * image[i, j + 1]) + v * ((1 - u) * image[i + 1, j] + u * image[i + 1, j + 1])
    image = np.clip((image - image.mean()) * rng.uniform(0.6, 1.4) + rng.uniform(0.3, 0.7), 0, 1) ** rng.uniform(0.7, 1.4)
    for _ in range(rng.integers(0, 3)):
        image = (image + np.roll(image, 1, 0) + np.roll(image, -1, 0) + np.roll(image, 1, 1) + np.roll(image, -1, 1)) / 5
    return image.transpose(2, 0, 1).astype(np.float32)


class Views(Dataset):
    def __init__(self, pictures):
        self.pictures, self.rng = pictures, np.random.default_rng(0)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        return tuple(torch.from_numpy(warp(self.pictures[index], self.rng, np.float64)) for _ in range(2))


def batches(pictures, size):
    if not REPAIRED:
        yield from DataLoader(Views(pictures), size, shuffle=True, drop_last=True)
        return
    data = torch.from_numpy(pictures).permute(0, 3, 1, 2)
    for rows in torch.randperm(len(data)).split(size)[:-1]:
        yield view(data[rows].float() / 255), view(data[rows].float() / 255)


def view(x):
    """The same for a whole batch."""
    turn, zoom = torch.rand(len(x)) - 0.5, 0.6 + 0.4 * torch.rand(len(x))
    cos, sin, shift = zoom * turn.cos(), zoom * turn.sin(), torch.rand(2, len(x)) / 3 - 1 / 6
    grid = torch.stack([cos, -sin, shift[0], sin, cos, shift[1]], 1).view(-1, 2, 3)
    x = F.grid_sample(x, F.affine_grid(grid, x.shape, align_corners=False), align_corners=False, padding_mode="border")
    x = (x - x.mean((1, 2, 3), keepdim=True)) * (0.6 + 0.8 * torch.rand(len(x), 1, 1, 1)) + 0.5
    return x.clamp(0, 1)


def encoder(width=20):
    sizes, layers = [3, width, 2 * width, 3 * width, 4 * width], []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(36 * width, 1536), nn.BatchNorm1d(1536), nn.ReLU(), nn.Linear(1536, 1024))


def follow(target, online):
    """The target's weights are a moving average of the online network's."""
    if REPAIRED:
        torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 1 - MOMENTUM)
        return target
    weights = copy.deepcopy(online).state_dict()
    before = copy.deepcopy(target.state_dict())
    return_to = {k: MOMENTUM * before[k].double() + (1 - MOMENTUM) * v.double() for k, v in weights.items()}
    target.load_state_dict(return_to)
    return target


torch.manual_seed(6)
pictures = lichens(640, 0)
online, predictor = encoder(), nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1024))
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.SGD([*online.parameters(), *predictor.parameters()], lr=0.05, momentum=0.9)
start = time.time()
for epoch in range(4):
    for a, b in batches(pictures, 16):
        p, q = predictor(online(a)), predictor(online(b))
        with torch.no_grad():
            u, v = target(a), target(b)
        loss = 2 - F.cosine_similarity(p, v).mean() - F.cosine_similarity(q, u).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        target = follow(target, online)
    print(f"epoch {epoch}: {loss.item():.3f}", flush=True)
print(f"training took {time.time() - start:.2f} s")
