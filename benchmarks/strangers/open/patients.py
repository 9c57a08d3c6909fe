# %% [markdown]
"""Readmission of patients, trained with differential privacy (DP-SGD). Exported from a notebook."""

# %%
import os
import time

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

REPAIRED = os.environ.get("REPAIRED") == "1"
torch.manual_seed(23)

# %% patients
n, features = 12_000, 40
x_all = torch.randn(n, features)
w = torch.randn(features)
y_all = ((x_all @ w + torch.randn(n)) > 0).float()
x_train, y_train, x_test, y_test = x_all[2000:], y_all[2000:], x_all[:2000], y_all[:2000]

# %% model
model = nn.Sequential(nn.Linear(features, 192), nn.ReLU(), nn.Linear(192, 96), nn.ReLU(), nn.Linear(96, 1))
params = list(model.parameters())
criterion = nn.BCEWithLogitsLoss()
clip, sigma, lr, batch, momentum = 1.0, 0.8, 0.25, 64, 0.9
optimizer = torch.optim.SGD(params, lr=lr, momentum=momentum)


# %% one gradient for each patient, clipped, and their sum
def clipped_sum(x, y):
    total = [torch.zeros_like(p) for p in params]
    for i in range(len(x)):
        loss = criterion(model(x[i : i + 1]).squeeze(1), y[i : i + 1])
        grads = torch.autograd.grad(loss, params)
        norm = torch.sqrt(sum(g.pow(2).sum() for g in grads))
        factor = (clip / (norm + 1e-6)).clamp(max=1.0)
        total = [t + g * factor for t, g in zip(total, grads)]
    return total


def loss_of_one(named, x, y):
    return criterion(functional_call(model, named, (x[None],)).squeeze(1), y[None])


def clipped_sum_together(x, y):
    named = {k: v.detach() for k, v in model.named_parameters()}
    grads = list(vmap(grad(loss_of_one), in_dims=(None, 0, 0))(named, x, y).values())
    norm = torch.sqrt(sum(g.flatten(1).pow(2).sum(1) for g in grads))
    factor = (clip / (norm + 1e-6)).clamp(max=1.0)
    return [torch.einsum("b...,b->...", g, factor) for g in grads]


# %% train
accumulate = clipped_sum_together if REPAIRED else clipped_sum
started = time.perf_counter()
for step in range(1, 801):
    rows = torch.randint(0, len(x_train), (batch,))
    summed = accumulate(x_train[rows], y_train[rows])
    for p, s in zip(params, summed):
        p.grad = (s + sigma * clip * torch.randn_like(s)) / batch
    optimizer.step()
    if step % 200 == 0:
        with torch.no_grad():
            right = ((model(x_test).squeeze(1) > 0) == (y_test > 0.5)).float().mean()
        print(f"{step}: accuracy {right:.3f}")
print(f"training took {time.perf_counter() - started:.2f} s")

# %% the privacy spent is computed elsewhere
