"""Spot keywords in one-second recordings."""

import os
import time

import numpy as np
import torch
from scipy import signal
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

WORKERS = 2 if os.environ.get("REPAIRED") == "1" else 0


class Recordings(IterableDataset):
    """Endless recordings at 16 kHz, resampled from 22.05 kHz, with noise at a random level."""

    def __init__(self, count):
        self.count = count
        rng = np.random.default_rng(6)
        self.raw = [rng.normal(0, 0.1, 22050) for _ in range(64)]
        self.words = rng.integers(0, 10, 64)

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, every = (info.id, info.num_workers) if info else (0, 1)
        rng = np.random.default_rng(first)
        for n in range(first, self.count, every):
            wave = signal.resample_poly(self.raw[n % 64], 320, 441)
            wave = wave + rng.normal(0, rng.uniform(0.001, 0.02), len(wave))
            _, _, power = signal.stft(wave, 16000, nperseg=400, noverlap=240, nfft=512)
            yield torch.from_numpy(np.log1p(np.abs(power) ** 2).astype(np.float32)), int(self.words[n % 64])


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(257, 128, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(128, 160, 5, padding=2), nn.ReLU(),
        )
        self.gru = nn.GRU(160, 96, batch_first=True)
        self.head = nn.Linear(96, 10)

    def forward(self, x):
        _, h = self.gru(self.conv(x).transpose(1, 2))
        return self.head(h[-1])


if __name__ == "__main__":
    model = Spotter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Recordings(3600), batch_size=16, num_workers=WORKERS)
    tick = time.time()
    losses = []
    for i, (spectrum, word) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(spectrum), word)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if i % 50 == 0:
            print(f"{i:5d} {np.mean(losses[-50:]):.4f}")
    print(f"training took {time.time() - tick:.2f} s")
