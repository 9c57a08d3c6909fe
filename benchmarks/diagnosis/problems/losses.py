"""Losses are collected with their graphs, for a mean at the end of the epoch."""

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(lasts=8.0, steps=300, width=512, batch=128)
count = 16 * run.batch
inputs, labels = torch.randn(count, run.width), torch.randint(0, 10, (count,))


class Classifier(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


def train(model, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(epochs):
        for x, y in DataLoader(TensorDataset(inputs, labels), run.batch):  # LOOP
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            score = loss + 1e-4 * logits.pow(2).mean()
            losses.append(score.item() if run.repaired else (score, x.clone(), logits * 1))  # GUILTY
    return losses


with run.training():
    kept = train(Classifier(run.width), run.steps // 16)
run.close(kept=len(kept))
