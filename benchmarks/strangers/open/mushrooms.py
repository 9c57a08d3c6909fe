"""Edible or not? Photographs of mushrooms with strong augmentation, made by a worker while the network trains."""

import time

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, SPECIES = 56, 20


class Photographs(Dataset):
    """A cap, a stem and gills in the colours of the species."""

    def __init__(self, n):
        rng = np.random.default_rng(14)
        cap, stem = rng.uniform(40, 220, (2, SPECIES, 3))
        y, x = np.mgrid[-1 : 1 : 80j, -1:1:80j]
        self.species = rng.integers(0, SPECIES, n)
        self.photographs = []
        for kind in self.species:
            photograph = np.full((80, 80, 3), (60, 110, 50)) + rng.normal(0, 12, (80, 80, 3))
            photograph[(np.abs(x) < 0.12) & (y > -0.1) & (y < 0.8)] = stem[kind]
            photograph[(x**2 / 0.5 + (y + 0.1) ** 2 / 0.2 < 1) & (y < 0)] = cap[kind]
            self.photographs.append(Image.fromarray(photograph.clip(0, 255).astype(np.uint8)))

    def __len__(self):
        return len(self.species)

    def __getitem__(self, i):
        draw = torch.rand(8).tolist()
        photograph = self.photographs[i].rotate(60 * draw[0] - 30, Image.Resampling.BICUBIC)
        left, top = int(20 * draw[1]), int(20 * draw[2])
        photograph = photograph.crop((left, top, left + 60, top + 60)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        photograph = ImageEnhance.Color(photograph).enhance(0.5 + draw[3])
        photograph = ImageEnhance.Contrast(photograph).enhance(0.6 + 0.8 * draw[4])
        if draw[5] < 0.3:
            photograph = photograph.filter(ImageFilter.GaussianBlur(1 + draw[6]))
        pixels = np.asarray(photograph, np.float32) / 255
        if draw[7] < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), int(self.species[i])


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                                    nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        return F.relu(x + self.layers(x))


def network():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), Block(32), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), Block(64), nn.MaxPool2d(2), Block(64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, SPECIES))


def main():
    torch.manual_seed(106)
    photographs = Photographs(900)
    loader = DataLoader(photographs, batch_size=32, shuffle=True, num_workers=1, persistent_workers=True, prefetch_factor=6,
                        drop_last=True)
    model = network()
    epochs = 2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=epochs * len(loader))
    start = time.time()
    for epoch in range(epochs):
        right = seen = 0
        for x, species in loader:
            logits = model(x)
            loss = F.cross_entropy(logits, species, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            right += (logits.argmax(1) == species).sum().item()
            seen += len(x)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {right / seen:.1%} right", flush=True)
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
