"""Two ranks, one of which has a slower forward pass."""

import time

import torch
from bench import Run
from ranks import launch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=120, share=0.45, slow=1, width=256, batch=64)


class Encoder(nn.Module):
    def __init__(self, width, late):
        super().__init__()
        self.late = late
        self.layers = nn.Sequential(nn.Linear(width, 700), nn.ReLU(), nn.Linear(700, 10))

    def forward(self, x):
        if self.late:
            with run.spends("late"):
                time.sleep(self.late)  # GUILTY
        return self.layers(x)


def train(rank):
    model = nn.parallel.DistributedDataParallel(Encoder(run.width, run.pause() if rank == run.slow else 0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    count = run.steps * run.batch
    data = TensorDataset(torch.randn(count, run.width), torch.randint(0, 10, (count,)))
    with run.training():
        for x, y in DataLoader(data, run.batch):  # LOOP
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    if rank == run.slow:
        run.close(rank=rank)


if __name__ == "__main__":
    launch(train)
