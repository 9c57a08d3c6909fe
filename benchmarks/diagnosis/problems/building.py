"""The model is initialized slowly, matrix by matrix, before training."""

import time

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=150, seconds=10.0, width=448, batch=128)


def orthogonal(width):
    matrix = torch.randn(width, width)
    q, _ = torch.linalg.qr(matrix)  # GUILTY
    return q


def build_model(width, seconds):
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 6))
    until = time.perf_counter() + seconds
    with run.spends("building"), torch.no_grad():
        while True:
            for layer in (model[0], model[2]):
                layer.weight.copy_(orthogonal(width))
            if time.perf_counter() > until:
                return model


def main():
    model = build_model(run.width, 0.0 if run.repaired else run.seconds)
    count = run.steps * run.batch
    data = TensorDataset(torch.randn(count, run.width), torch.randint(0, 6, (count,)))
    optimizer = torch.optim.AdamW(model.parameters())
    with run.training():
        for x, y in DataLoader(data, run.batch, shuffle=True):  # LOOP
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    run.close()


main()
