#!/usr/bin/env python
"""Where was this postcard sent from? One zip archive of jpegs per country."""

import io
import os
import time
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

COUNTRIES = ["at", "be", "ch", "de", "dk", "es", "fr", "it", "nl", "pt"]
KEEP_OPEN = os.environ.get("REPAIRED") == "1"


def write_archives(folder, per_country=240):
    rng = np.random.default_rng(3)
    for country in COUNTRIES:
        tint = rng.integers(40, 215, 3)
        with zipfile.ZipFile(folder / f"{country}.zip", "w") as archive:
            for i in range(per_country):
                low = rng.integers(-60, 60, (8, 8, 3)) + tint
                image = Image.fromarray(np.clip(low, 0, 255).astype(np.uint8)).resize((80, 80), Image.Resampling.BICUBIC)
                data = io.BytesIO()
                image.save(data, "jpeg", quality=85)
                archive.writestr(f"cards/{i:05d}.jpg", data.getvalue())


class Postcards(Dataset):
    def __init__(self, folder):
        self.folder = folder
        self.archives = {}
        self.cards = []
        for label, country in enumerate(COUNTRIES):
            with zipfile.ZipFile(folder / f"{country}.zip") as archive:
                self.cards += [(country, name, label) for name in archive.namelist()]

    def archive(self, country):
        if not KEEP_OPEN:
            return zipfile.ZipFile(self.folder / f"{country}.zip")
        if country not in self.archives:
            self.archives[country] = zipfile.ZipFile(self.folder / f"{country}.zip")
        return self.archives[country]

    def __len__(self):
        return len(self.cards)

    def __getitem__(self, i):
        country, name, label = self.cards[i]
        data = self.archive(country).read(name)
        image = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=np.float32)
        return torch.from_numpy(image).permute(2, 0, 1) / 127.5 - 1, label


def convnet(width=16):
    layers, i = [], 3
    for o in (width, 2 * width, 4 * width, 4 * width):
        layers += [nn.Conv2d(i, o, 3, 2, 1), nn.GroupNorm(4, o), nn.SiLU()]
        i = o
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, len(COUNTRIES)))


if __name__ == "__main__":
    torch.manual_seed(3)
    folder = Path("archives")
    folder.mkdir(exist_ok=True)
    write_archives(folder)
    loader = DataLoader(Postcards(folder), batch_size=40, shuffle=True, drop_last=True)
    model = convnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3 * len(loader))
    begin = time.perf_counter()
    for epoch in range(3):
        total = 0.0
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if i % 20 == 0:
                total = loss.item()
        print("epoch", epoch, "loss", round(total, 3))
    print(f"training took {time.perf_counter() - begin:.2f} s")
