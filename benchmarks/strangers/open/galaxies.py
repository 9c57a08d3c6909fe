"""Shapes of galaxies from small survey images."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


@dataclass(frozen=True)
class Config:
    epochs: int = 6
    images: int = 1200
    batch: int = 32
    side: int = 48
    lr: float = 1e-3
    workers: int = 2
    keep_workers: bool = field(default_factory=lambda: os.environ.get("REPAIRED") == "1")


class Survey(Dataset[tuple[Tensor, int]]):
    """Spirals and ellipses with noise; each is turned by a random quarter."""

    def __init__(self, config: Config, seed: int) -> None:
        rng = np.random.default_rng(seed)
        ys, xs = np.mgrid[-1 : 1 : config.side * 1j, -1 : 1 : config.side * 1j]
        radius, angle = np.hypot(xs, ys), np.arctan2(ys, xs)
        self.labels = rng.integers(0, 4, config.images)
        self.images = np.empty((config.images, 1, config.side, config.side), np.float32)
        for image, label in zip(self.images, self.labels):
            arms = np.cos(label * angle + rng.uniform(4, 9) * radius + rng.uniform(0, 6))
            image[0] = np.exp(-3 * radius) * (1 + 0.5 * arms) + rng.normal(0, 0.05, radius.shape)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = np.rot90(self.images[index], np.random.randint(4), axes=(1, 2))
        return torch.from_numpy(image.copy()), int(self.labels[index])


class Morphology(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (1, 24, 32, 48)
        layers: list[nn.Module] = []
        for a, b in zip(widths, widths[1:]):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class Trainer:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.model = Morphology()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr)
        self.criterion = nn.CrossEntropyLoss()
        self.loader = DataLoader(
            Survey(config, seed=0),
            batch_size=config.batch,
            shuffle=True,
            num_workers=config.workers,
            multiprocessing_context="spawn",
            persistent_workers=config.keep_workers,
            prefetch_factor=4,
        )

    def train_epoch(self) -> float:
        self.model.train()
        total = torch.zeros(())
        for images, labels in self.loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        return float(total) / len(self.loader)

    def fit(self) -> None:
        begin = time.perf_counter()
        for epoch in range(self.config.epochs):
            print(f"epoch {epoch}: loss {self.train_epoch():.3f}", flush=True)
        print(f"training took {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(Config()).fit()
