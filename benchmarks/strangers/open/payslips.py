"""Estimate overtime from payslips without giving anybody away: DP-SGD, each person's gradient is clipped, noise is added."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

CLIP, NOISE, BATCH, STEPS = 1.0, 0.6, 48, 260
JOBS, TOWNS, NUMBERS = 60, 200, 24


class Overtime(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.job, self.town = nn.Embedding(JOBS, 16), nn.Embedding(TOWNS, 16)
        self.layers = nn.Sequential(nn.Linear(NUMBERS + 32, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
                                    nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, numbers, job, town):
        return self.layers(torch.cat([numbers, self.job(job), self.town(town)], -1)).squeeze(-1)


def people(n):
    g = torch.Generator().manual_seed(3)
    numbers = torch.randn(n, NUMBERS, generator=g)
    job = torch.randint(0, JOBS, (n,), generator=g)
    town = torch.randint(0, TOWNS, (n,), generator=g)
    hours = numbers[:, 0].abs() + 0.05 * job - 0.5 * numbers[:, 1] * numbers[:, 2] + 0.1 * torch.randn(n, generator=g)
    return numbers, job, town, hours


def private_gradients(model, batch):
    """Return the sum of the clipped gradients of all people."""
    if os.environ.get("REPAIRED") == "1":
        weights = {name: p.detach() for name, p in model.named_parameters()}

        def one(weights, numbers, job, town, hours):
            return F.mse_loss(functional_call(model, weights, (numbers, job, town)), hours)

        each = vmap(grad(one), in_dims=(None, 0, 0, 0, 0))(weights, *batch)
        norms = sum(g.flatten(1).square().sum(1) for g in each.values()).sqrt()
        factors = (CLIP / (norms + 1e-6)).clamp(max=1.0)
        return [torch.einsum("n,n...->...", factors, g) for g in each.values()]
    total = [torch.zeros_like(p) for p in model.parameters()]
    for person in zip(*batch):
        numbers, job, town, hours = (value[None] for value in person)
        model.zero_grad()
        F.mse_loss(model(numbers, job, town), hours).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        assert norm.isfinite()
        for s, p in zip(total, model.parameters()):
            s += p.grad
    return total


torch.manual_seed(102)
data = people(20_000)
model = Overtime()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
start = time.time()
for step in range(STEPS):
    rows = (torch.rand(len(data[0])) < BATCH / len(data[0])).nonzero().squeeze(1)  # Poisson sampling
    if not len(rows):
        continue
    batch = [column[rows] for column in data]
    summed = private_gradients(model, batch)
    for p, s in zip(model.parameters(), summed):
        p.grad = (s + NOISE * CLIP * torch.randn_like(s)) / BATCH
    optimizer.step()
    if step % 50 == 0:
        with torch.no_grad():
            sample = [column[:2000] for column in data]
            print(f"step {step}: error {F.mse_loss(model(*sample[:3]), sample[3]):.3f}", flush=True)
print(f"training took {time.time() - start:.2f} s")
