# %% [markdown]
"""Forecast tomorrow's sales of each store from a table of receipts."""

# %%
import os
import time

import numpy as np
import pandas as pd
import torch
from torch import nn

rng = np.random.default_rng(1)
STORES, DAYS = 60, 420
df = pd.DataFrame({
    "store": np.repeat(np.arange(STORES), DAYS),
    "day": np.tile(np.arange(DAYS), STORES),
    "units": rng.poisson(40, STORES * DAYS).astype("float32"),
    "price": rng.normal(10, 2, STORES * DAYS).astype("float32"),
})


def features(frame):
    by_store = frame.groupby("store")
    out = pd.DataFrame({"units": frame["units"], "price": frame["price"]})
    for lag in (1, 7, 14):
        out[f"lag{lag}"] = by_store["units"].shift(lag)
    for window in (7, 28):
        out[f"mean{window}"] = by_store["units"].transform(lambda s, w=window: s.rolling(w).mean())
    out["dow"] = frame["day"] % 7
    return out.fillna(0.0)


# %%
model = nn.Sequential(
    nn.Linear(8, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)
)
optim = torch.optim.Adam(model.parameters(), 1e-3)
lossfn = nn.SmoothL1Loss()
STEPS = 1100
groups = np.array_split(np.arange(STORES), 12)
cache = {}

# %%
t0 = time.perf_counter()
for step in range(STEPS):
    chosen = groups[step % len(groups)]
    if os.environ.get("REPAIRED") == "1" and step % len(groups) in cache:
        X, y = cache[step % len(groups)]
    else:
        part = df[df["store"].isin(chosen)]
        table = features(part)
        X = torch.tensor(table.to_numpy(np.float32)) / 40
        y = torch.tensor(part.groupby("store")["units"].shift(-1).fillna(40).to_numpy(np.float32)) / 40
        cache[step % len(groups)] = X, y
    pred = model(X[::16]).squeeze(1)
    loss = lossfn(pred, y[::16])
    optim.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optim.step()
    if step % 100 == 0:
        print("step", step, "loss", round(loss.item(), 4))
print("training took %.2f s" % (time.perf_counter() - t0))
