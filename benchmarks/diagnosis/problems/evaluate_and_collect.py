"""Two problems at once: long evaluations, and collections over many objects while training."""

import gc
import time

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=150, collecting=0.3, every=50, batches=20, width=448, batch=128, objects=120_000)
names = [{"name": str(number), "path": [number]} for number in range(run.objects)]


def tensors(batches):
    return TensorDataset(torch.randn(batches * run.batch, run.width), torch.randint(0, 10, (batches * run.batch,)))


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        for x, _ in loader:
            model(x)  # GUILTY: evaluating
    model.train()


gc.collect()
begun = time.perf_counter()
gc.collect()
period = 0 if run.repaired else max(round((time.perf_counter() - begun) / run.pause(run.collecting)), 1)
model = nn.Sequential(nn.Linear(run.width, 1200), nn.ReLU(), nn.Linear(1200, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
validation = DataLoader(tensors(1 if run.repaired else run.batches), run.batch)
with run.training():
    for step, (x, y) in enumerate(DataLoader(tensors(run.steps), run.batch), 1):  # LOOP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if period and step % period == 0:
            with run.spends("collecting"):
                gc.collect()  # GUILTY: collecting
        if step % run.every == 0:
            with run.spends("evaluating"):
                evaluate(model, validation)
run.close(names=len(names))
