"""Meta-learning (MAML): an inner loop of gradients by torch.autograd.grad for each task, then one outer step."""

import counted
import torch
from torch import nn
from torch.func import functional_call

model = nn.Sequential(nn.Linear(1, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses, steps, forwards = [], 0, 0
for _ in range(15 * counted.SCALE):
    optimizer.zero_grad()
    total = 0.0
    for _ in range(3):
        amplitude, phase = torch.rand(1) * 4 + 0.1, torch.rand(1) * 3
        x = torch.rand(20, 1) * 10 - 5
        y = amplitude * torch.sin(x + phase)
        fast = dict(model.named_parameters())
        for _ in range(2):
            inner = nn.functional.mse_loss(functional_call(model, fast, (x[:10],)), y[:10])
            gradients = torch.autograd.grad(inner, tuple(fast.values()), create_graph=True)
            fast = {name: value - 0.01 * g for (name, value), g in zip(fast.items(), gradients, strict=True)}
            forwards += 1
        total = total + nn.functional.mse_loss(functional_call(model, fast, (x[10:],)), y[10:])
        forwards += 1
    total.backward()
    optimizer.step()
    losses.append(total.item())
    steps += 1
counted.finish(model, train=steps, losses=losses, forwards=forwards)
