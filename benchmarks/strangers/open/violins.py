"""Who built the violin? Recordings in a dry room, put into rooms of all kinds, and a one-dimensional ResNet."""
import argparse
import os
import time

import numpy as np
import torch
from scipy import signal
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE, BUILDERS = 8000, 9
reverb = signal.fftconvolve if os.environ.get("REPAIRED") == "1" else np.convolve


def tone(rng, builder):
    """A bowed string through the resonances of a body."""
    t = np.arange(2 * RATE) / RATE
    pitch = rng.uniform(196, 700) * (1 + 0.004 * np.sin(2 * np.pi * 5.5 * t))
    string = signal.sawtooth(2 * np.pi * np.cumsum(pitch) / RATE)
    body = np.zeros_like(string)
    for k, centre in enumerate((280, 460, 550, 1100, 2600)):
        shifted = centre * (1 + 0.03 * ((builder * (k + 2)) % BUILDERS - BUILDERS / 2) / BUILDERS)
        b, a = signal.iirpeak(shifted, 12, fs=RATE)
        body += signal.lfilter(b, a, string)
    return (body + 0.02 * rng.normal(size=len(t))).astype(np.float32)


def room(rng):
    """An impulse response: the direct sound, a few early echoes, a tail."""
    length = int(RATE * rng.uniform(0.3, 0.45))
    response = 0.2 * rng.normal(size=length) * np.exp(-np.arange(length) / (0.08 * RATE))
    response[0] = 1
    response[rng.integers(50, 600, 4)] += 0.5
    return response.astype(np.float32)


class Violins(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.builder = rng.integers(0, BUILDERS, count)
        self.tones = [tone(rng, b) for b in self.builder]
        self.rooms = [room(rng) for _ in range(60)]
        self.rng = rng

    def __len__(self):
        return len(self.tones)

    def __getitem__(self, i):
        wet = reverb(self.tones[i], self.rooms[self.rng.integers(60)])[: 2 * RATE]
        start = self.rng.integers(RATE)
        wet = wet[start : start + RATE]
        return torch.from_numpy(wet / (np.abs(wet).max() + 1e-6)).float()[None], int(self.builder[i])


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(cin, cout, 9, stride, 4, bias=False), nn.BatchNorm1d(cout), nn.ReLU(inplace=True),
            nn.Conv1d(cout, cout, 9, 1, 4, bias=False), nn.BatchNorm1d(cout))  # fmt: skip
        self.skip = nn.Conv1d(cin, cout, 1, stride)

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--violins", type=int, default=500)
    p.add_argument("--batch", type=int, default=16)
    args = p.parse_args()
    torch.manual_seed(0)
    data = Violins(args.violins, 5)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    net = nn.Sequential(
        nn.Conv1d(1, 32, 32, 8, 12), nn.ReLU(), Block(32, 48, 2), Block(48, 64, 2), Block(64, 96, 2),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(96, BUILDERS))  # fmt: skip
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=args.epochs * len(loader))
    begin = time.time()
    for epoch in range(args.epochs):
        right = seen = 0
        for x, builder in loader:
            logits = net(x)
            loss = nn.functional.cross_entropy(logits, builder, label_smoothing=0.05)
            opt.zero_grad()
            loss.backward()
            opt.step()
            schedule.step()
            right += (logits.argmax(1) == builder).sum().item()
            seen += len(x)
        print(f"epoch {epoch}: {right / seen:.3f} right", flush=True)
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
