"""A phase that the script declares itself takes most of the loop."""

import contextlib
import time

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    from sm_profiler.hook import get_hook

    hook = get_hook()
except ImportError:
    hook = None

run = Run(steps=140, share=0.5, name="augment", width=400, batch=64)


def phase(name):
    return hook.phase(name) if hook else contextlib.nullcontext()


def augment(batch, seconds):
    if seconds:
        time.sleep(seconds)  # GUILTY
    return batch + 0.01


count = run.steps * run.batch
model = nn.Sequential(nn.Linear(run.width, 1200), nn.ReLU(), nn.Linear(1200, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with run.training():
    for x, y in DataLoader(TensorDataset(torch.randn(count, run.width), torch.zeros(count).long()), run.batch):  # LOOP
        with run.spends("declared"), phase("augment"):
            inputs = augment(x, run.pause())
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), y).backward()
        optimizer.step()
run.close()
