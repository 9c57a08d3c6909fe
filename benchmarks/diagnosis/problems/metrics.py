"""Metrics of the whole training set so far, computed after every step."""

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=160, share=0.4, width=400, batch=64)


class Meter:
    def __init__(self, classes):
        self.classes = classes
        self.table = torch.zeros(classes, classes, dtype=torch.long)

    def update(self, predictions, targets):
        for predicted, target in zip(predictions.tolist(), targets.tolist(), strict=True):
            self.table[target, predicted] += 1

    def f1(self):
        scores = []
        for label in range(self.classes):
            hits = self.table[label, label].item()  # GUILTY
            found = self.table[:, label].sum().item()
            wanted = self.table[label].sum().item()
            scores.append(2 * hits / max(found + wanted, 1))
        return sum(scores) / self.classes


def fit(model, loader, optimizer, meter, rounds):
    for x, y in loader:  # LOOP
        optimizer.zero_grad()
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        with run.spends("metrics"):
            for _ in range(rounds):
                meter.f1()  # GUILTY


torch.manual_seed(3)
count = run.steps * run.batch
loader = DataLoader(TensorDataset(torch.randn(count, run.width), torch.randint(0, 10, (count,))), run.batch)
model = nn.Sequential(nn.Linear(run.width, 3 * run.width), nn.ReLU(), nn.Linear(3 * run.width, 10))
meter = Meter(10)
rounds = run.rounds(meter.f1)
with run.training():
    fit(model, loader, torch.optim.SGD(model.parameters(), lr=0.1), meter, rounds)
run.close()
