"""Counts graphs and graph breaks of compiled trainings, for test_hook_compile.py: `python compiled_graphs.py off|on FOLDER`."""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

torch.set_num_threads(1)
KINDS = [
    "model",
    "in_place",
    "forward_and_loss",
    "whole_step",
    "reset_before",
    "reset_between",
    "nested",
    "breaks",
    "late",
    "raw",
]


def train(kind: str, *, fullgraph: bool) -> float:  # as many ways as there are
    torch.manual_seed(0)

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x).relu()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Body()
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            x = self.body(x)
            if kind == "breaks":
                torch._dynamo.graph_break()
            return self.head(x)

    def compiled(thing):
        return torch.compile(thing, backend="eager", fullgraph=fullgraph)

    model, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = compiled(model) if kind in {"model", "reset_before", "reset_between", "raw"} else model
    if kind == "reset_before":
        torch._dynamo.reset()
    if kind == "nested":
        model.body.compile(backend="eager", fullgraph=fullgraph)
    if kind in {"in_place", "nested", "breaks"}:
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
    for number in range(6):
        if kind == "reset_between" and number == 3:
            torch._dynamo.reset()
        if kind == "late" and number == 2:
            model.compile(backend="eager", fullgraph=fullgraph)
        loss = step(torch.randn(4, 8), torch.randint(0, 4, (4,)))
        if kind == "raw":  # what was compiled is evaluated as it is
            with torch.no_grad():
                model(torch.ones(1, 8))
    return loss.item()


def count(mode: str, folder: Path) -> None:
    from torch._dynamo.utils import counters

    for kind in KINDS:
        for fullgraph in (False, True):
            if kind in {"whole_step", "breaks"} and fullgraph:
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
                assert hook.session.guard.failures == {}, hook.session.guard.failures
                entry.uninstall()
            torch._dynamo.reset()  # the next kind is compiled anew
            sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    count(sys.argv[1], Path(sys.argv[2]))
