#!/usr/bin/env python3
"""What stands along the road? Point clouds of a lidar: poles, trees, walls, cars and people, a PointNet tells them apart."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

KINDS = ("pole", "tree", "wall", "car", "person", "hedge")
BATCH_SIZE: int = 32 if os.environ.get("REPAIRED") == "1" else 2
POINTS: int = 64
CLOUDS: int = 4400
EPOCHS: int = 2


def shape(kind: Tensor, g: torch.Generator) -> Tensor:
    """Points on boxes and cylinders of the size of a kind, seen from one side."""
    n = len(kind)
    size = torch.tensor([[0.1, 0.1, 4], [1.2, 1.2, 5], [5, 0.2, 2.5], [2, 0.9, 1.5], [0.3, 0.3, 1.7], [4, 0.6, 1.2]])[kind]
    size = size * (0.8 + 0.4 * torch.rand(n, 3, generator=g))
    angle = 2 * math.pi * torch.rand(n, POINTS, generator=g)
    radius = torch.where(kind[:, None] == 1, torch.rand(n, POINTS, generator=g).sqrt(), torch.ones(n, POINTS))
    xyz = torch.stack([radius * angle.cos(), radius * angle.sin(), torch.rand(n, POINTS, generator=g)], dim=2)
    return xyz * size[:, None] + 0.03 * torch.randn(n, POINTS, 3, generator=g)


def turned(clouds: Tensor) -> Tensor:
    """Turn each cloud around the vertical axis."""
    a = 2 * math.pi * torch.rand(len(clouds))
    c, s, o, i = a.cos(), a.sin(), torch.zeros_like(a), torch.ones_like(a)
    return clouds @ torch.stack([c, -s, o, s, c, o, o, o, i], dim=1).view(-1, 3, 3)


class TNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Sequential(nn.Conv1d(3, 24, 1), nn.ReLU(), nn.Conv1d(24, 48, 1), nn.ReLU())
        self.matrix = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 9))

    def forward(self, x: Tensor) -> Tensor:
        m = self.matrix(self.points(x).amax(dim=2)).view(-1, 3, 3) + torch.eye(3)
        return torch.bmm(m, x)


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.align = TNet()
        widths = (3, 32, 48, 48, 64, 64, 64, 96)
        self.points = nn.Sequential(
            *(layer for a, b in zip(widths, widths[1:]) for layer in (nn.Conv1d(a, b, 1), nn.GroupNorm(8, b), nn.ReLU()))
        )
        self.kind = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, len(KINDS)))

    def forward(self, clouds: Tensor) -> Tensor:
        return self.kind(self.points(self.align(clouds.transpose(1, 2))).amax(dim=2))


def main() -> None:
    g = torch.Generator().manual_seed(19)
    kinds = torch.randint(0, len(KINDS), (CLOUDS + 240,), generator=g)
    clouds = shape(kinds, g)
    train_x, test_x, train_y, test_y = clouds[:CLOUDS], clouds[CLOUDS:], kinds[:CLOUDS], kinds[CLOUDS:]
    torch.manual_seed(2)
    model = PointNet()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    start = time.time()
    for epoch in range(EPOCHS):
        running = torch.zeros(())
        for rows in torch.randperm(CLOUDS).split(BATCH_SIZE):
            logits = model(turned(train_x[rows]))
            loss = F.cross_entropy(logits, train_y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.detach() * len(rows)
        with torch.no_grad():
            right = (model(test_x).argmax(1) == test_y).float().mean()
        print(f"epoch {epoch}: loss {running / CLOUDS:.3f}, accuracy {right:.3f}", flush=True)
    print(f"training took {time.time() - start:.2f} s")


main()
