"""A transform that computes for longer than the step, and one worker for it."""

import random

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

run = Run(steps=150, share=0.5, width=512, batch=64)


def jitter(values):
    return [value * random.uniform(0.9, 1.1) for value in values]  # GUILTY


class Augmented(Dataset):
    def __init__(self, count, width, rounds):
        self.count, self.rounds = count, rounds
        self.base = torch.randn(64, width)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        sample = self.base[index % 64]
        with run.spends("augmenting"):
            noise = [1.0] * 64
            for _ in range(self.rounds):
                noise = jitter(noise)  # GUILTY
        return sample * noise[0], index % 10


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.body(x))


if __name__ == "__main__":
    # a batch takes the worker as long as a step and the planted wait together
    whole = 0 if run.repaired else run.usual() / (1 - run.share) / run.batch
    per_round = run.rounds(lambda: jitter([1.0] * 64), share=0.5) / max(run.usual(), 1e-9)
    dataset = Augmented(run.steps * run.batch, run.width, round(whole * per_round))
    model = Model(run.width)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    with run.training():
        for x, y in DataLoader(dataset, run.batch, num_workers=1):  # LOOP
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
    run.close()
