"""Predict the customers who leave: a table of visits, features with pandas, a small network."""

import os
import time

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CUSTOMERS, VISITS = 5000, 60_000
rng = np.random.default_rng(8)
visits = pd.DataFrame({
    "customer": rng.integers(0, CUSTOMERS, VISITS),
    "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 365 * 24, VISITS), unit="h"),
    "spent": rng.gamma(2.0, 20.0, VISITS),
    "channel": rng.choice(["web", "shop", "phone"], VISITS),
})


def describe(group):
    """Features of a customer."""
    group = group.sort_values("when")
    gaps = group["when"].diff().dt.total_seconds().div(86400)
    row = {"n": len(group), "spent": group["spent"].sum(), "mean": group["spent"].mean(), "std": group["spent"].std()}
    row |= {"gap": gaps.mean(), "longest": gaps.max(), "trend": group["spent"].rolling(3).mean().diff().mean()}
    row |= {name: (group["channel"] == name).mean() for name in ("web", "shop", "phone")}
    return pd.Series(row)


def describe_all(table):
    """The same features of all customers at once."""
    table = table.sort_values(["customer", "when"])
    by = table.groupby("customer")
    gaps = by["when"].diff().dt.total_seconds().div(86400).groupby(table["customer"])
    trend = by["spent"].rolling(3).mean().reset_index(level=0, drop=True).groupby(table["customer"]).diff()
    out = pd.DataFrame({"n": by.size(), "spent": by["spent"].sum(), "mean": by["spent"].mean(), "std": by["spent"].std()})
    out = out.assign(gap=gaps.mean(), longest=gaps.max(), trend=trend.groupby(table["customer"]).mean())
    return out.join(pd.crosstab(table["customer"], table["channel"], normalize="index"))


if os.environ.get("REPAIRED") == "1":
    features = describe_all(visits)
else:
    features = pd.DataFrame([describe(group) for _, group in visits.groupby("customer")])
features = ((features - features.mean()) / features.std()).fillna(0)

x = torch.tensor(features.to_numpy(np.float32))
y = torch.from_numpy(rng.integers(0, 2, len(x)).astype(np.float32))
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True, drop_last=True)
model = nn.Sequential(nn.Linear(x.shape[1], 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.Adam(model.parameters())
loss_function = nn.BCEWithLogitsLoss()
start = time.time()
for epoch in range(12):
    for xb, yb in loader:
        loss = loss_function(model(xb).squeeze(1), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 4 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")
print(f"training took {time.time() - start:.2f} s")
