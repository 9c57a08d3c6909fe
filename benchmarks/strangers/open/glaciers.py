"""How thick is a glacier? An MLP with gates on terrain; AutoClip: gradients are clipped at a percentile of their past norms."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, RandomSampler

REPAIRED = os.environ.get("REPAIRED") == "1"


class AutoClip:
    """Clip each parameter at the given percentile of all its gradient norms so far (Seetharaman et al. 2020)."""

    def __init__(self, parameters, percentile=20):
        self.parameters = list(parameters)
        self.percentile = percentile
        self.history = [[] for _ in self.parameters]
        self.norms = []

    def each(self):
        for p, history in zip(self.parameters, self.history):
            norm = p.grad.norm(2).item()
            history.append(norm)
            limit = np.percentile(history, self.percentile)
            if norm > limit:
                p.grad.mul_(limit / (norm + 1e-6))

    def all_at_once(self):
        grads = [p.grad for p in self.parameters]
        norms = torch.stack(torch._foreach_norm(grads))
        self.norms.append(norms)
        if len(self.norms) % 100 == 1:
            self.limits = torch.stack(self.norms[-1000:]).quantile(self.percentile / 100, dim=0)
        torch._foreach_mul_(grads, list((self.limits / (norms + 1e-6)).clamp(max=1)))

    __call__ = all_at_once if REPAIRED else each


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
for epoch in range(5):
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
