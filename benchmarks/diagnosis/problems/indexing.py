"""The dataset indexes its files for a long time before the first step."""

import time

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

run = Run(steps=200, seconds=9.0, width=400, batch=48)


class Archive(Dataset):
    def __init__(self, count, width):
        self.index = {}
        with run.spends("indexing"):
            self.scan(count)
        self.samples = torch.randn(64, width)

    def scan(self, count):
        until = time.perf_counter() + (0 if run.repaired else run.seconds)
        number = 0
        while number < count or time.perf_counter() < until:
            key = f"{number % count:08d}.jpg"
            self.index[key] = hash(key) % 10  # GUILTY
            number += 1

    def __len__(self):
        return len(self.index)

    def __getitem__(self, index):
        return self.samples[index % 64], index % 10


archive = Archive(run.steps * run.batch, run.width)
model = nn.Sequential(nn.Linear(run.width, 900), nn.ReLU(), nn.Linear(900, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with run.training():
    for x, y in DataLoader(archive, run.batch):  # LOOP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
run.close()
