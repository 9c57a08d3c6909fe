"""Which of twelve pianos is it? Recordings as compressed 16 bit samples, mel spectrograms, a convolutional net in Lightning."""

import os
import time
import zlib

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from scipy import signal
from torch import nn
from torch.utils.data import DataLoader, Dataset

REPAIRED = os.environ.get("REPAIRED") == "1"
RATE, PIANOS, MELS = 16_000, 12, 48


def mel_filters(bins):
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, MELS + 2) / 2595) - 1) / (RATE / 2) * (bins - 1)
    k = np.arange(bins)
    rising = (k - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - k) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(rising, falling)).astype("float32")


def recordings(n):
    rng = np.random.default_rng(6)
    found = []
    t = np.arange(int(1.2 * 44_100)) / 44_100
    for _ in range(n):
        piano = int(rng.integers(PIANOS))
        pitch = 110 * 2 ** (rng.integers(0, 24) / 12)
        wave = sum(np.sin(2 * np.pi * pitch * h * t * (1 + 1e-4 * piano * h * h)) / h ** (0.6 + piano / 12) for h in range(1, 6))
        wave = wave * np.exp(-t * (1 + piano / 4)) + 0.05 * rng.standard_normal(len(t))
        found.append((zlib.compress((wave / np.abs(wave).max() * 32000).astype("<i2").tobytes(), 1), piano))
    return found


class Notes(Dataset):
    def __init__(self, notes):
        self.notes = notes
        self.filters = mel_filters(257)
        self.ready = [self.spectrogram(blob) for blob, _ in notes] if REPAIRED else None

    def spectrogram(self, blob):
        wave = np.frombuffer(zlib.decompress(blob), "<i2") / 32768
        wave = signal.resample_poly(wave, 160, 441)
        _, _, power = signal.stft(wave, RATE, nperseg=512, noverlap=352)
        mel = self.filters @ np.abs(power).astype("float32") ** 2
        return torch.from_numpy(np.log(mel + 1e-6).astype("float32"))[None]

    def __len__(self):
        return len(self.notes)

    def __getitem__(self, index):
        blob, piano = self.notes[index]
        return (self.ready[index] if self.ready else self.spectrogram(blob)), piano


class Listener(pl.LightningModule):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2, padding=2), nn.BatchNorm2d(width), nn.GELU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.GELU(),
            nn.AdaptiveAvgPool2d((6, 6)), nn.Flatten(), nn.Linear(72 * width, 512), nn.GELU(), nn.Linear(512, PIANOS),
        )  # fmt: skip

    def training_step(self, batch, _):
        x, piano = batch
        loss = nn.functional.cross_entropy(self.net(x), piano)
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    pl.seed_everything(11, verbose=False)
    keep = ModelCheckpoint("checkpoints", filename="{step}", save_top_k=-1, every_n_train_steps=50 if REPAIRED else 1)
    trainer = pl.Trainer(max_epochs=3, accelerator="cpu", logger=False, callbacks=[keep], enable_progress_bar=False,
                         enable_model_summary=False)
    notes = Notes(recordings(800))
    start = time.time()
    trainer.fit(Listener(), DataLoader(notes, batch_size=16, shuffle=True))
    print(f"loss {trainer.callback_metrics['train/loss']:.3f}")
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
