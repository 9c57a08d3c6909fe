"""Predict the tide from the hours before it, and watch how well."""

import os
import time

import torch
from torch import nn

EVERY = 40 if os.environ.get("REPAIRED") == "1" else 1


class Tide(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, 48, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(48, 6)

    def forward(self, hours):
        return self.out(self.drop(self.gru(hours)[0][:, -1]))


def series(hours):
    t = torch.arange(hours, dtype=torch.float32)
    level = torch.sin(t * 0.506) + 0.46 * torch.sin(t * 0.524 + 1) + 0.2 * torch.sin(t * 0.262) + 0.05 * torch.randn(hours)
    return torch.stack([level, torch.cos(t * 0.262)], 1)


def windows(data, past=48, ahead=6):
    whole = data.unfold(0, past + ahead, 1).transpose(1, 2)
    return whole[:, :past], whole[:, past:, 0]


torch.manual_seed(0)
x, y = windows(series(20_000))
val_x, val_y = windows(series(560))
model = Tide()
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
best = float("inf")
start = time.time()
for i in range(500):
    rows = torch.randint(0, len(x), (64,))
    model.train()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if i % EVERY == 0:
        model.eval()
        with torch.no_grad():
            best = min(best, nn.functional.mse_loss(model(val_x), val_y).item())
    if i % 100 == 0:
        print(f"{i}: train {loss.item():.4f}, best {best:.4f}")
print(f"training took {time.time() - start:.2f} s")
