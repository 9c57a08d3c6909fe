"""Recognize radio stations: crops of long recordings, a spectral CNN, pictures of what it received."""

import os
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

REPAIRED = os.environ.get("REPAIRED") == "1"
RATE, MINUTES, CROP = 8000, 8, 8000
CONFIG = {"batch": 16, "steps": 240, "lr": 1e-3, "picture_every": 200 if REPAIRED else 20}


def record(folder, count=10):
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(12)
    t = np.arange(RATE * 60 * MINUTES, dtype=np.float32) / RATE
    for n in range(count):
        tone = np.sin(2 * np.pi * (200 + 90 * n) * t) * np.sin(2 * np.pi * 0.7 * t)
        np.save(folder / f"{n:02d}.npy", (tone + rng.normal(0, 1, len(t))).astype(np.float32))


class Crops(Dataset):
    def __init__(self, folder, length):
        self.files = sorted(folder.glob("*.npy"))
        self.length = length
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        station = i % len(self.files)
        recording = np.load(self.files[station], mmap_mode="r" if REPAIRED else None)
        begin = self.rng.integers(0, len(recording) - CROP)
        return torch.from_numpy(np.array(recording[begin : begin + CROP])), station


class Listener(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.register_buffer("window", torch.hann_window(256))
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2), nn.BatchNorm2d(64), nn.ReLU(),
            nn.AdaptiveAvgPool2d((4, 1)), nn.Flatten(), nn.Linear(256, classes),
        )

    def spectra(self, waves):
        power = torch.stft(waves, 256, 64, window=self.window, return_complex=True).abs().square()
        return torch.log1p(power)

    def forward(self, waves):
        return self.cnn(self.spectra(waves)[:, None])


def picture(model, waves, logits, path):
    """The first two crops: waves, spectra and scores."""
    figure, axes = plt.subplots(2, 3, figsize=(12, 6))
    for row, wave, score in zip(axes, waves, logits.detach()):
        row[0].plot(wave.numpy(), linewidth=0.3)
        row[1].imshow(model.spectra(wave[None])[0].numpy(), aspect="auto", origin="lower")
        row[2].bar(range(len(score)), score.softmax(0).numpy())
    figure.savefig(path, dpi=110)
    plt.close(figure)


folder = Path("recordings")
record(folder)
pictures = Path("pictures")
pictures.mkdir(exist_ok=True)
loader = DataLoader(Crops(folder, CONFIG["batch"] * CONFIG["steps"]), CONFIG["batch"])
model = Listener(10)
optimizer = torch.optim.Adam(model.parameters(), lr=CONFIG["lr"])
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=CONFIG["steps"])

start = time.time()
for step, (waves, stations) in enumerate(loader):
    logits = model(waves)
    loss = nn.functional.cross_entropy(logits, stations)
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if step % CONFIG["picture_every"] == 0:
        picture(model, waves, logits, pictures / f"{step:04d}.png")
    if step % 40 == 0:
        print(f"step {step}: {loss.item():.3f}")
print(f"training took {time.time() - start:.2f} s")
