"""Click-through rate of advertisements: embeddings of categorical features and a deep network."""

import os
import time
from collections import defaultdict

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

REPAIRED = os.environ.get("REPAIRED") == "1"
ROWS, COLUMNS, VALUES, ADVERTISERS = 500_000, 10, 3000, 120


class DeepCTR(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.tables = nn.EmbeddingBag(COLUMNS * VALUES, dim, mode="sum", sparse=True)
        self.deep = nn.Sequential(nn.Linear(COLUMNS * dim, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer("shift", torch.arange(COLUMNS) * VALUES)

    def forward(self, x):
        each = self.tables((x + self.shift).reshape(-1, 1)).view(len(x), -1)
        return self.deep(each).squeeze(1)


def impressions():
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, VALUES, (ROWS, COLUMNS), generator=g)
    x[:, 0] %= ADVERTISERS
    rate = torch.sigmoid(torch.sin(x.float()).sum(1) - 1.5)
    return TensorDataset(x, torch.bernoulli(rate, generator=g))


def forever(loader):
    while True:
        yield from loader


def by_advertiser(x, p, y):
    """Log loss and calibration of each advertiser in the batch."""
    who, p, y = x[:, 0].numpy(), p.clip(1e-6, 1 - 1e-6), y.numpy()
    each = -(y * np.log(p) + (1 - y) * np.log(1 - p))
    if REPAIRED:
        ids, at, n = np.unique(who, return_inverse=True, return_counts=True)
        sums = [np.bincount(at, v) for v in (each, p, y)]
        return dict(zip(ids.tolist(), zip((sums[0] / n).tolist(), (sums[1] / np.maximum(sums[2], 1)).tolist())))
    table = pd.DataFrame({"who": who, "loss": each, "p": p, "y": y})
    return {
        name: (group["loss"].mean(), group["p"].sum() / max(group["y"].sum(), 1))
        for name, group in table.groupby("who")
    }


def main():
    torch.manual_seed(31)
    loader = DataLoader(impressions(), batch_size=256, shuffle=True, drop_last=True)
    endless = forever(loader)
    model = DeepCTR()
    sparse = torch.optim.SparseAdam(model.tables.parameters(), lr=2e-3)
    dense = torch.optim.Adam(model.deep.parameters(), lr=1e-3)
    dashboard = defaultdict(lambda: (0.0, 1.0))
    t0 = time.time()
    for step in range(1, 501):
        x, y = next(endless) if REPAIRED else next(iter(loader))
        logits = model(x)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        for name, (cost, ratio) in by_advertiser(x, logits.detach().sigmoid().numpy(), y).items():
            old = dashboard[name]
            dashboard[name] = (0.95 * old[0] + 0.05 * cost, 0.95 * old[1] + 0.05 * ratio)
        if step % 100 == 0:
            worst = max(dashboard, key=lambda name: dashboard[name][0])
            print(f"step {step} loss {loss.item():.4f}, worst advertiser {worst}: {dashboard[worst][0]:.3f}")
    print(f"training took {time.time() - t0:.2f} s")


if __name__ == "__main__":
    main()
