"""Name the cricket that sings: log spectra of its chirps, random crops of them, a small two-dimensional CNN."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

KINDS, MELS, FRAMES, CROP = 14, 64, 160, 96


def chirps(kind, rng):
    """Chirps as they look in a spectrum: a carrier with its overtone, pulses in groups."""
    band, t = np.arange(MELS)[:, None], np.arange(FRAMES)[None]
    carrier = 15 + 2.5 * kind % 30 + rng.normal()
    beat = np.sin(2 * np.pi * t / (6 + kind % 5) + rng.uniform(0, 6)) > 0.2
    group = np.sin(2 * np.pi * t / (30 + 4 * (kind % 3)) + rng.uniform(0, 6)) > -0.3
    loud = np.exp(-((band - carrier) ** 2) / 6) + 0.4 * np.exp(-((band - 1.6 * carrier) ** 2) / 9)
    return np.log(loud * beat * group + 0.3 * rng.random((MELS, FRAMES))).astype(np.float32)


class Meadow(Dataset):
    def __init__(self, songs, seed=0):
        self.rng = np.random.default_rng(seed)
        self.kinds = self.rng.integers(0, KINDS, songs)
        self.songs = [chirps(kind, self.rng) for kind in self.kinds]

    def __len__(self):
        return len(self.songs)

    def __getitem__(self, index):
        start = self.rng.integers(FRAMES - CROP)
        return self.songs[index][:, start : start + CROP], self.kinds[index]


def collate(batch):
    spectra = [spectrum for spectrum, _ in batch]
    kinds = [kind for _, kind in batch]
    if os.environ.get("REPAIRED") == "1":
        spectra, kinds = np.stack(spectra), np.stack(kinds)
    return torch.tensor(spectra), torch.tensor(kinds)


class Ear(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [1, 24, 48, 64, 96]
        layers = []
        for inside, outside in zip(sizes, sizes[1:]):
            layers += [nn.Conv2d(inside, outside, 3, 2, 1), nn.BatchNorm2d(outside), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(sizes[-1], KINDS)

    def forward(self, spectra):
        return self.head(self.body(spectra[:, None]).mean((2, 3)))


def main(epochs=10):
    torch.manual_seed(7)
    loader = DataLoader(Meadow(1600), batch_size=40, shuffle=True, collate_fn=collate, drop_last=True)
    ear, criterion = Ear(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(ear.parameters(), lr=1e-3)
    begin = time.time()
    for epoch in range(epochs):
        running = 0.0
        for spectra, kinds in loader:
            optimizer.zero_grad()
            loss = criterion(ear(spectra), kinds)
            loss.backward()
            optimizer.step()
            running += loss.detach()
        print(f"epoch {epoch + 1}: {running / len(loader):.3f}", flush=True)
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
