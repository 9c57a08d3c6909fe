"""Two problems at once: slow samples, and norms of all gradients after every step."""

import time

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

run = Run(steps=130, loading=0.45, norms=0.22, width=1000, batch=8)


class Slow(Dataset):
    def __init__(self, count, delay):
        self.count, self.delay, self.rows = count, delay, torch.randn(64, run.width)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with run.spends("loading"):
            if self.delay:
                time.sleep(self.delay)  # GUILTY: loading
        return self.rows[index % 64], index % 10


def norms(model):
    return {name: parameter.detach().norm().item() for name, parameter in model.named_parameters()}  # GUILTY: norms


both = run.loading + run.norms
scale = 0.0 if run.repaired else run.usual() / (1 - both)
model = nn.Sequential(nn.Linear(run.width, 1200), nn.ReLU(), nn.Linear(1200, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rounds = round(run.rounds(lambda: norms(model), share=0.5) * scale * run.norms / max(run.usual(), 1e-9))
with run.training():
    for x, y in DataLoader(Slow(run.steps * run.batch, scale * run.loading / run.batch), run.batch):  # LOOP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        with run.spends("norms"):
            for _ in range(rounds):
                norms(model)  # GUILTY: norms
run.close()
