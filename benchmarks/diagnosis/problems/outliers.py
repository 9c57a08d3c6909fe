"""Some forward passes at random are many times longer."""

import random
import time

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=250, share=0.3, rare=0.03, width=400, batch=64)
dice = random.Random(11)


class Retrieval(nn.Module):
    """Looks up neighbours in an index that is sometimes cold."""

    def __init__(self, width, cold):
        super().__init__()
        self.scale, self.cold, self.calls = nn.Parameter(torch.ones(width)), cold, 0
        self.misses = set(dice.sample(range(15, run.steps), max(int(run.steps * run.rare), 4)))

    def forward(self, x):
        self.calls += 1
        if self.cold and self.calls in self.misses:
            with run.spends("missing"):
                time.sleep(self.cold)  # GUILTY
        return x * self.scale


cold = run.pause(every=run.steps / max(int(run.steps * run.rare), 4))
total = run.steps * run.batch
model = nn.Sequential(Retrieval(run.width, cold), nn.Linear(run.width, 1100), nn.ReLU(), nn.Linear(1100, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(total, run.width), torch.randint(0, 5, (total,))), batch_size=run.batch)
with run.training():
    for x, y in loader:  # LOOP
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
run.close()
