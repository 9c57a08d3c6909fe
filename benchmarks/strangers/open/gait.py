"""Contrastive pretraining (NT-Xent) on accelerometer windows of people walking."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from scipy.interpolate import CubicSpline
from scipy.spatial.transform import Rotation
from torch import nn

REPAIRED = os.environ.get("REPAIRED") == "1"
BATCH, LENGTH, KNOTS = 64, 200, 6
STEPS = 130
rng = np.random.default_rng(12)
torch.manual_seed(12)


def recordings(people=300, minutes=1):
    """Three axes at 50 Hz, each person with a gait."""
    t = np.arange(minutes * 60 * 50) / 50
    pace = rng.uniform(1.4, 2.2, (people, 1, 1))
    phase = rng.uniform(0, 6.28, (people, 3, 1))
    size = rng.uniform(0.3, 1.5, (people, 3, 1))
    wave = size * np.sin(2 * np.pi * pace * t + phase) + 0.3 * np.sin(4 * np.pi * pace * t)
    return (wave + 0.1 * rng.standard_normal(wave.shape)).astype(np.float32)


def augment(window):
    """Turn, scale, warp and disturb one window of shape (3, LENGTH)."""
    window = Rotation.random(random_state=rng).as_matrix() @ window
    window = window * rng.normal(1, 0.15, (3, 1))
    knots = np.linspace(0, LENGTH - 1, KNOTS)
    speed = CubicSpline(knots, rng.normal(1, 0.2, KNOTS))(np.arange(LENGTH))
    when = np.cumsum(np.clip(speed, 0.2, None))
    when *= (LENGTH - 1) / when[-1]
    window = np.stack([np.interp(when, np.arange(LENGTH), axis) for axis in window])
    for axis in range(3):
        bend = CubicSpline(knots, rng.normal(1, 0.1, KNOTS))
        window[axis] *= bend(np.arange(LENGTH))
    return window + rng.normal(0, 0.05, window.shape)


def augment_all(x):
    """The same for all windows at once."""
    n, at = len(x), np.arange(LENGTH)
    x = Rotation.random(n, random_state=rng).as_matrix() @ x
    x *= rng.normal(1, 0.15, (n, 3, 1))
    knots = np.linspace(0, LENGTH - 1, KNOTS)
    when = np.clip(CubicSpline(knots, rng.normal(1, 0.2, (n, KNOTS)), axis=1)(at), 0.2, None).cumsum(1)
    when *= (LENGTH - 1) / when[:, -1:]
    low = np.clip(when.astype(int), 0, LENGTH - 2)[:, None]
    part = when[:, None] - low
    x = np.take_along_axis(x, low, 2) * (1 - part) + np.take_along_axis(x, low + 1, 2) * part
    x *= CubicSpline(knots, rng.normal(1, 0.1, (n, 3, KNOTS)), axis=2)(at)
    return x + rng.normal(0, 0.05, x.shape)


def views(x):
    for _ in range(2):
        y = augment_all(x) if REPAIRED else np.stack([augment(w) for w in x])
        yield torch.from_numpy(y.astype(np.float32))


def nt_xent(a, b, temperature=0.2):
    z = F.normalize(torch.cat([a, b]), dim=1)
    sim = z @ z.T / temperature
    sim.fill_diagonal_(-1e9)
    partner = torch.arange(len(z)).roll(len(a))
    return F.cross_entropy(sim, partner)


encoder = nn.Sequential(
    nn.Conv1d(3, 64, 7, padding=3), nn.ReLU(),
    nn.Conv1d(64, 96, 7, stride=2, padding=3), nn.ReLU(),
    nn.Conv1d(96, 128, 7, stride=2, padding=3), nn.ReLU(),
    nn.AdaptiveAvgPool1d(1), nn.Flatten(),
    nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64),
)
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3, weight_decay=1e-5)
data = recordings()
tic = time.time()
for step in range(STEPS):
    who = rng.choice(len(data), BATCH, replace=False)
    begin = rng.integers(0, data.shape[2] - LENGTH, BATCH)
    x = np.stack([data[p, :, b:b + LENGTH] for p, b in zip(who, begin)])
    first, second = views(x)
    loss = nt_xent(encoder(first), encoder(second))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 26 == 0:
        print(step, round(loss.item(), 4))
print(f"training took {time.time() - tic:.2f} s")
