"""No loader and no optimizer object: parameters are updated by hand; a report after every step, or nothing wrong."""

import math

import torch
from bench import Run
from torch import nn

run = Run(steps=250, share=0.4, width=448, batch=96)


def histogram(parameters):
    """Bins of the weights, in Python."""
    bins = [0] * 20
    for parameter in parameters:
        for value in parameter.detach().flatten()[:500].tolist():
            bins[min(int(abs(value) * 100), 19)] += 1  # GUILTY
    return [math.log1p(count) for count in bins]


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(run.width, 1200), nn.Tanh(), nn.Linear(1200, 10))
data, targets = torch.randn(4000, run.width), torch.randint(0, 10, (4000,))
parameters = list(model.parameters())
rounds = run.rounds(lambda: histogram(parameters)) if run.share else 0
with run.training():
    for step in range(run.steps):  # LOOP
        start = (step * run.batch) % (4000 - run.batch)
        x, y = data[start : start + run.batch], targets[start : start + run.batch]
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 0.05 * parameter.grad
                parameter.grad = None
        with run.spends("histograms"):
            for _ in range(rounds):
                histogram(parameters)  # GUILTY
run.close()
