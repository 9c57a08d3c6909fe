"""A line of JSON about every parameter, after every step."""

import json
import tempfile

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=160, share=0.4, width=384, batch=64)


def describe(model):
    return {name: parameter.detach().flatten()[:200].tolist() for name, parameter in model.named_parameters()}  # GUILTY


def write_line(file, step, loss, model):
    file.write(json.dumps({"step": step, "loss": loss, "weights": describe(model)}) + "\n")  # GUILTY
    file.flush()


net = nn.Sequential(nn.Linear(run.width, 2 * run.width), nn.Tanh(), nn.Linear(2 * run.width, run.width), nn.Tanh())
model = nn.Sequential(net, nn.Linear(run.width, 7))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(run.steps * run.batch, run.width), torch.randint(0, 7, (run.steps * run.batch,)))
with tempfile.NamedTemporaryFile("w") as journal:
    lines = run.rounds(lambda: write_line(journal, 0, 0.0, model))
    with run.training():
        for step, (x, y) in enumerate(DataLoader(data, run.batch)):  # LOOP
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with run.spends("logging"):
                for _ in range(lines):
                    write_line(journal, step, loss.item(), model)  # GUILTY
run.close()
