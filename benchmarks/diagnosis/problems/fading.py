"""From some step on, every step takes longer, and it stays so."""

import time

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=240, after=0.4, times=2.0, width=400, batch=64)


class Throttled(nn.Module):
    """A layer on hardware that gets slower once it is hot."""

    def __init__(self, width, pause, cool_steps):
        super().__init__()
        self.linear, self.pause, self.left = nn.Linear(width, width), pause, cool_steps

    def forward(self, x):
        self.left -= 1
        if self.left < 0 and self.pause:
            with run.spends("throttled"):
                time.sleep(self.pause)  # GUILTY
        return self.linear(x)


def main():
    pause = 0.0 if run.repaired else run.usual() * (run.times - 1)
    hot = Throttled(run.width, pause, int(run.steps * run.after))
    model = nn.Sequential(hot, nn.ReLU(), nn.Linear(run.width, 1200), nn.ReLU(), nn.Linear(1200, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    count = run.steps * run.batch
    data = DataLoader(TensorDataset(torch.randn(count, run.width), torch.randint(0, 10, (count,))), run.batch)
    with run.training():
        for x, y in data:  # LOOP
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    run.close()


main()
