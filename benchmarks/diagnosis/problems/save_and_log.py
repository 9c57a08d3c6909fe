"""Two problems at once: a checkpoint every N steps, and samples that are written out one by one."""

import json
import tempfile
import time
from pathlib import Path

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=150, saving=0.35, logging=0.2, every=25, width=400, batch=64)


def dump(file, rows):
    for row in rows:
        file.write(json.dumps([round(value, 4) for value in row]) + "\n")  # GUILTY: logging
    file.flush()


def save(model, path, pause):
    torch.save(model.state_dict(), path)  # GUILTY: saving
    if pause:
        time.sleep(pause)  # GUILTY: the share acknowledges


def main(folder):
    count = run.steps * run.batch
    model = nn.Sequential(nn.Linear(run.width, 1200), nn.ReLU(), nn.Linear(1200, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    loader = DataLoader(TensorDataset(torch.randn(count, run.width), torch.randint(0, 10, (count,))), run.batch)
    whole = 0.0 if run.repaired else run.usual() / (1 - run.saving - run.logging)
    with (folder / "samples.jsonl").open("w") as journal:
        rounds = run.rounds(lambda: dump(journal, [[0.5] * 10] * run.batch), share=0.5)
        rounds = round(rounds * whole * run.logging / max(run.usual(), 1e-9))
        with run.training():
            for step, (x, y) in enumerate(loader, 1):  # LOOP
                optimizer.zero_grad()
                logits = model(x)
                nn.functional.cross_entropy(logits, y).backward()
                optimizer.step()
                with run.spends("logging"):
                    for _ in range(rounds):
                        dump(journal, logits.tolist())  # GUILTY: logging
                if step % run.every == 0 and not run.repaired:
                    with run.spends("saving"):
                        save(model, folder / "model.pt", whole * run.saving * run.every)
    run.close()


with tempfile.TemporaryDirectory() as where:
    main(Path(where))
