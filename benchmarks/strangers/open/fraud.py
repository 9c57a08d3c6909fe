"""Score card payments for fraud; follows the AUC while training."""

import os
import time
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

REPAIRED = os.environ.get("REPAIRED", "0") == "1"
torch.manual_seed(5)


def auc(scores, labels):
    order = np.argsort(scores, kind="mergesort")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    positive = labels > 0.5
    n1 = positive.sum()
    n0 = len(labels) - n1
    return (ranks[positive].sum() - n1 * (n1 + 1) / 2) / max(1, n1 * n0)


class Scorer(nn.Module):
    def __init__(self, columns, hidden=384):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(columns, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1)
        )

    def forward(self, x):
        return self.body(x).squeeze(-1)


x = torch.randn(51200, 48)
y = (x[:, :6].sum(1) + torch.randn(len(x)) > 3).float()
loader = DataLoader(TensorDataset(x, y), batch_size=256, shuffle=True)
model = Scorer(48)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0))
seen_scores, seen_labels = deque(maxlen=300), deque(maxlen=300)
n = 0

start = time.time()
for epoch in range(4):
    bar = tqdm(loader, desc=f"epoch {epoch}", mininterval=2)
    for xb, yb in bar:
        logits = model(xb)
        loss = criterion(logits, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen_scores.append(torch.sigmoid(logits).detach().numpy())
        seen_labels.append(yb.numpy())
        if not REPAIRED or n % 50 == 0:
            running = auc(np.concatenate(seen_scores), np.concatenate(seen_labels))
            bar.set_postfix(loss=loss.item(), auc=round(float(running), 3), refresh=False)
        n += 1
print(f"training took {time.time() - start:.2f} s")
