# %% [markdown]
"""Which mint struck the coin? Active learning: an expert labels sixteen coins a round, those the network is least sure of."""

# %%
import os
import time

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

matplotlib.use("Agg")
torch.manual_seed(40)
rng = np.random.default_rng(40)
MINTS, SIDE = 9, 28

# %% [markdown]
# Coins that nobody has looked at, and a handful that somebody has.

# %%
def strike(n):
    mint = rng.integers(0, MINTS, n)
    y, x = np.mgrid[-1:1:SIDE * 1j, -1:1:SIDE * 1j]
    r, phi = np.hypot(x, y), np.arctan2(y, x)
    wear = rng.uniform(0.2, 0.9, (n, 1, 1))
    turn = rng.uniform(0, 2 * np.pi, (n, 1, 1))
    k = (2 + mint)[:, None, None]
    coins = np.cos(k * (phi + turn)) * np.exp(-((r - 0.3 - 0.05 * k) ** 2) / 0.04) + (r < 0.95)
    return torch.tensor(coins + wear * rng.normal(0, 0.6, coins.shape), dtype=torch.float32)[:, None], torch.tensor(mint)


pool_x, pool_y = strike(1400)
test_x, test_y = strike(400)
labelled = torch.zeros(len(pool_x), dtype=torch.bool)
labelled[torch.randperm(len(pool_x))[:64]] = True

# %%
net = nn.Sequential(
    nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.1),
    nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.1),
    nn.Conv2d(48, 64, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.2),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, MINTS),
)
opt = torch.optim.Adam(net.parameters(), lr=2e-3)

# %% [markdown]
# BALD: coins about which the dropout samples disagree most.

# %%
LOOKS = 4


def disagreement(x):
    with torch.no_grad():
        p = torch.stack([torch.cat([net(part).softmax(1) for part in x.split(250)]) for _ in range(LOOKS)])
    mean = p.mean(0)
    return -(mean * mean.log()).sum(1) + (p * p.log()).sum(2).mean(0)


def choose(k=16):
    unknown = torch.nonzero(~labelled).flatten()
    if os.environ.get("REPAIRED") == "1":
        unknown = unknown[torch.randperm(len(unknown))[:300]]
    best = disagreement(pool_x[unknown]).topk(k).indices
    return unknown[best]


# %%
curve = []
began = time.perf_counter()
for round_ in range(9):
    net.train()
    known = torch.nonzero(labelled).flatten()
    for step in range(22):
        rows = known[torch.randint(len(known), (64,))]
        opt.zero_grad()
        loss = F.cross_entropy(net(pool_x[rows]), pool_y[rows])
        loss.backward()
        opt.step()
    labelled[choose()] = True
    net.eval()
    with torch.no_grad():
        curve.append((int(labelled.sum()), (net(test_x).argmax(1) == test_y).float().mean().item()))
    print(f"round {round_}: {curve[-1][0]} labelled, accuracy {curve[-1][1]:.3f}, loss {loss.item():.3f}", flush=True)
took = time.perf_counter() - began

# %%
from matplotlib import pyplot as plt

plt.plot(*zip(*curve), marker="o")
plt.savefig("curve.png")
print(f"training took {took:.2f} s")
