"""A network so small that Python is most of the step."""

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=3000, width=16, batch=8)


def loop(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_function = nn.MSELoss()
    for x, y in loader:  # LOOP
        optimizer.zero_grad()
        loss_function(model(x), y).backward()
        optimizer.step()


batch = run.batch * (8 if run.repaired else 1)
points = torch.rand(run.steps * batch, run.width)
loader = DataLoader(TensorDataset(points, points.sum(1, keepdim=True)), batch)
with run.training():
    loop(nn.Sequential(nn.Linear(run.width, run.width), nn.ReLU(), nn.Linear(run.width, 1)), loader)
run.samples = run.steps * batch
run.close()
