"""Counts graphs and graph breaks of compiled trainings, for test_hook_compile.py: `python compiled_graphs.py off|on FOLDER`."""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

torch.set_num_threads(1)
KINDS = ["model", "in_place", "forward_and_loss", "whole_step"]


def train(kind: str, *, fullgraph: bool) -> float:
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.body(x))

    def compiled(thing):
        return torch.compile(thing, backend="eager", fullgraph=fullgraph)

    model, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = compiled(model) if kind == "model" else model
    if kind == "in_place":
        model.compile(backend="eager", fullgraph=fullgraph)

    def forward(x, y):
        return criterion(run(x), y)

    if kind == "forward_and_loss":
        forward = compiled(forward)

    def step(x, y):
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    if kind == "whole_step":
        step = compiled(step)
    for _ in range(6):
        loss = step(torch.randn(4, 8), torch.randint(0, 4, (4,)))
    return loss.item()


def count(mode: str, folder: Path) -> None:
    from torch._dynamo.utils import counters

    for kind in KINDS:
        for fullgraph in (False, True):
            if kind == "whole_step" and fullgraph:
                continue  # torch refuses a backward inside one graph
            if mode == "on":
                profile = {"ProfilingParameters": {"LocalPath": str(folder / f"{kind}-{fullgraph}")}}
                os.environ["SM_PROFILER_CONFIG"] = json.dumps(profile)
                from sm_profiler.hook import entry

                hook = entry.install()
            counters.clear()
            loss = train(kind, fullgraph=fullgraph)
            stats = counters["stats"]
            row = {
                "kind": kind,
                "fullgraph": fullgraph,
                "loss": loss,
                "graphs": stats["unique_graphs"],
                "calls": stats["calls_captured"],
            }
            row["breaks"] = sum(counters["graph_break"].values())
            if mode == "on":
                assert hook.guard.failures == {}, hook.guard.failures
                entry.uninstall()
            sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    count(sys.argv[1], Path(sys.argv[2]))
