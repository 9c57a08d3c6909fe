"""Minerals from Raman spectra: a residual 1-D network, settings from a YAML-like text, as it ran on the server."""

import os
import time
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SETTINGS = """
threads: 8
batch_size: 32
epochs: 2
learning_rate: 0.002
width: 32
bands: 384
minerals: 30
spectra: 720
seed: 12
"""


def settings(text):
    pairs = (line.split(":") for line in text.split("\n") if line)
    return SimpleNamespace(**{k.strip(): float(v) if "." in v else int(v) for k, v in pairs})


def spectra(n, cfg, generator):
    """Each mineral has a few peaks; a spectrum has them with noise and a slope of fluorescence."""
    fixed = torch.Generator().manual_seed(0)
    places = torch.rand(cfg.minerals, 6, generator=fixed) * cfg.bands
    heights = torch.rand(cfg.minerals, 6, generator=fixed)
    kind = torch.randint(cfg.minerals, (n,), generator=generator)
    axis = torch.arange(cfg.bands)
    shift = torch.randn(n, 1, generator=generator)
    peaks = heights[kind][..., None] * torch.exp(-(((axis - places[kind][..., None] - shift[..., None]) / 4) ** 2))
    slope = torch.rand(n, 1, generator=generator) * axis / cfg.bands
    return (peaks.sum(1) + slope + 0.2 * torch.randn(n, cfg.bands, generator=generator))[:, None], kind


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(channels, channels, 7, padding=3), nn.BatchNorm1d(channels), nn.SiLU(),
            nn.Conv1d(channels, channels, 7, padding=3), nn.BatchNorm1d(channels),
        )

    def forward(self, x):
        return nn.functional.silu(x + self.body(x))


def build(cfg):
    layers, channels = [nn.Conv1d(1, cfg.width, 11, padding=5)], cfg.width
    for _ in range(3):
        layers += [Residual(channels), nn.Conv1d(channels, 2 * channels, 2, stride=2)]
        channels *= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, cfg.minerals))


def main():
    cfg = settings(SETTINGS)
    if os.environ.get("REPAIRED") == "1":
        cfg.threads = 1
    torch.set_num_threads(cfg.threads)
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed)
    loader = DataLoader(TensorDataset(*spectra(cfg.spectra, cfg, generator)), cfg.batch_size, shuffle=True)
    x_test, y_test = spectra(200, cfg, generator)
    net, loss_fn = build(cfg), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(net.parameters(), lr=cfg.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.004, total_steps=cfg.epochs * len(loader))
    tic = time.time()
    for epoch in range(cfg.epochs):
        net.train()
        for x, y in loader:
            loss = loss_fn(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        net.eval()
        with torch.inference_mode():
            right = (net(x_test).argmax(1) == y_test).float().mean()
        print(f"epoch {epoch}: loss {loss:.3f}, right {right:.1%}", flush=True)
    print(f"training took {time.time() - tic:.2f} s")


main()
