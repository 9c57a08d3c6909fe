"""A checkpoint with torch.save every N steps, on the training thread."""

import os
import tempfile
import time
from pathlib import Path

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=180, share=0.3, every=20, width=512, batch=64)


class Checkpointer:
    def __init__(self, folder, every, pause):
        self.folder, self.every, self.pause = Path(folder), every, pause

    def maybe_save(self, step, model, optimizer):
        if step % self.every or run.repaired:
            return
        with run.spends("saving"):
            begun = time.perf_counter()
            with (self.folder / "last.pt").open("wb") as file:
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, Slow(file, self.pause)
                )  # GUILTY
                os.fsync(file.fileno())
            self.last = time.perf_counter() - begun


class Slow:
    """A file on a network share: the first write of a checkpoint takes its time."""

    def __init__(self, file, pause):
        self.file, self.pause = file, pause

    def write(self, data):
        if self.pause:
            time.sleep(self.pause)  # GUILTY
            self.pause = 0
        return self.file.write(data)

    def flush(self):
        self.file.flush()


def main():
    samples = run.steps * run.batch
    loader = DataLoader(TensorDataset(torch.randn(samples, run.width), torch.randint(0, 8, (samples,))), run.batch)
    model = nn.Sequential(nn.Linear(run.width, 1024), nn.ReLU(), nn.Linear(1024, 8))
    optimizer = torch.optim.Adam(model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = Checkpointer(folder, run.every, run.pause(every=run.every))
        with run.training():
            for step, (x, y) in enumerate(loader, 1):  # LOOP
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                checkpointer.maybe_save(step, model, optimizer)
    run.close()


main()
