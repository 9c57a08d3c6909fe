# %% [markdown]
"""Meteors in the light curves of all-sky cameras. An endless stream, one pass, the AUC is printed as we go."""

# %%
import os
import time

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(21)
torch.manual_seed(107)
LENGTH, BATCH, STEPS = 64, 512, 480


# %%
def stream():
    """A meteor brightens fast and fades slowly; planes blink; clouds drift."""
    t = np.arange(LENGTH, dtype=np.float32)
    while True:
        curves = rng.standard_normal((BATCH, LENGTH), np.float32)
        curves += 2 * np.sin(t * rng.uniform(0.01, 0.6, (BATCH, 1)) + rng.uniform(0, 6, (BATCH, 1))).astype(np.float32)
        meteor = rng.random(BATCH) < 0.2
        dt = t - rng.uniform(5, 50, (meteor.sum(), 1)).astype(np.float32)
        curves[meteor] += np.where(dt > 0, 3 * np.exp(-np.maximum(dt, 0) / 6), 0)
        yield torch.from_numpy(curves[:, None]), torch.from_numpy(meteor.astype(np.float32))


def auc(scores, labels):
    rank = np.empty(len(scores))
    rank[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    positive = labels > 0
    n = positive.sum()
    return (rank[positive].sum() - n * (n + 1) / 2) / max(1, n * (len(labels) - n))


# %%
model = nn.Sequential(
    nn.Conv1d(1, 16, 7, stride=2, padding=3), nn.ReLU(),
    nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.ReLU(),
    nn.Conv1d(32, 32, 5, stride=2, padding=2), nn.ReLU(),
    nn.Flatten(), nn.Linear(32 * LENGTH // 8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
all_scores, all_labels = [], []
history = []

# %%
start = time.time()
for step, (curves, meteor) in zip(range(STEPS), stream()):
    scores = model(curves).squeeze(1)
    loss = criterion(scores, meteor)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    all_scores.append(scores.detach().numpy())
    all_labels.append(meteor.numpy())
    if os.environ.get("REPAIRED") == "1":
        if step % 60 == 0:
            history.append(auc(np.concatenate(all_scores[-60:]), np.concatenate(all_labels[-60:])))
    else:
        history.append(auc(np.concatenate(all_scores), np.concatenate(all_labels)))
    if step % 60 == 0:
        print(f"{step:4d}  loss {loss.item():.4f}  AUC {history[-1]:.4f}", flush=True)
print(f"training took {time.time() - start:.2f} s, AUC {history[-1]:.4f}")
