"""Two ranks with batches of unequal length: at each step another rank is late."""

import random
import time

import torch
from bench import Run
from ranks import launch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=140, share=0.45, width=256, batch=64)


class Uneven(nn.Module):
    def __init__(self, width, rank, late):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 700), nn.ReLU(), nn.Linear(700, 10))
        self.rank, self.late, self.draw = rank, late, random.Random(17)

    def forward(self, x):
        if self.draw.randrange(2) == self.rank and self.late:  # both ranks draw the same numbers
            time.sleep(self.late)  # GUILTY: the longer batch
        return self.body(x)


def train(rank):
    model = nn.parallel.DistributedDataParallel(Uneven(run.width, rank, run.pause()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    count = run.steps * run.batch
    loader = DataLoader(TensorDataset(torch.randn(count, run.width), torch.zeros(count).long()), run.batch)
    with run.training():
        for x, y in loader:  # LOOP
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    if rank == 0:
        run.close()


if __name__ == "__main__":
    launch(train)
