"""Dozens of small layers and a batch of two: the fixed cost of an operator, many times."""

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=500, depth=60, width=48, batch=2)
batch = 8 * run.batch if run.repaired else run.batch  # the same step for more samples


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


model = nn.Sequential(*(Block(run.width) for _ in range(run.depth)), nn.Linear(run.width, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(run.steps * batch, run.width), torch.randint(0, 4, (run.steps * batch,)))
with run.training():
    for x, y in DataLoader(data, batch):  # LOOP
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
run.samples = run.steps * batch
run.close()
