"""torch.compile with a shape that is new at most steps."""

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

run = Run(steps=120, width=256, batch=48, shapes=60)
torch._dynamo.config.recompile_limit = 10_000
torch._dynamo.config.accumulated_recompile_limit = 10_000


class Ragged(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        length = run.batch if run.repaired else run.batch + index % run.shapes
        return torch.zeros(length, run.width).normal_(), torch.zeros(length, dtype=torch.long)


class Tower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
        self.out = nn.Linear(width, 5)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + x  # GUILTY: compiled for every shape
        return self.out(x)


tower = Tower(run.width)
model = torch.compile(tower, backend="eager", dynamic=False)  # GUILTY
optimizer = torch.optim.SGD(tower.parameters(), lr=0.01)
with run.training():
    for x, y in DataLoader(Ragged(run.steps), batch_size=None):  # LOOP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # GUILTY
        optimizer.step()
run.close()
