"""More threads than cores, each of them spinning while it waits for the others."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=100, factor=8, width=512, batch=96)
if not run.repaired:
    torch.set_num_threads(run.factor * len(os.sched_getaffinity(0)))  # GUILTY

model = nn.Sequential(nn.Linear(run.width, 800), nn.ReLU(), nn.Linear(800, 800), nn.ReLU(), nn.Linear(800, 10))
optimizer = torch.optim.Adam(model.parameters())
total = run.steps * run.batch
loader = DataLoader(TensorDataset(torch.randn(total, run.width), torch.randint(0, 10, (total,))), run.batch)
with run.training():
    for x, y in loader:  # LOOP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
run.close()
