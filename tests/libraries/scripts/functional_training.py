"""torch.func: per-sample gradients by vmap over functional_call, and weights that are a dict; no optimizer object."""

import counted
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader

model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
weights = {name: value.detach().clone() for name, value in model.named_parameters()}


def loss_of(weights, x, y):
    return nn.functional.mse_loss(functional_call(model, weights, (x.unsqueeze(0),)).squeeze(), y)


per_sample = vmap(grad(loss_of), in_dims=(None, 0, 0))
losses, steps = [], 0
for _ in range(2 * counted.SCALE):
    for x, y in DataLoader(counted.Rows(torch.randn(64, 10), torch.randn(64)), 8, shuffle=True):
        gradients = per_sample(weights, x, y)
        for name, value in gradients.items():
            norms = value.flatten(1).norm(dim=1).clamp(min=1.0).view(-1, *[1] * (value.dim() - 1))
            weights[name] = weights[name] - 0.05 * (value / norms).mean(0)
        losses.append(loss_of(weights, x[0], y[0]).item())
        steps += 1
model.load_state_dict(weights)
counted.finish(model, train=steps, losses=losses)
