"""Rare long steps, at no regular distance."""

import random
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from workload import Diary, Vectors, fetched, learn, network

share, long_ms, steps = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
draw = random.Random(7)  # noqa: S311 - which steps are long, no secret
chosen = set(draw.sample(range(20, steps), max(int(share * steps), 4)))


class Sometimes(nn.Module):
    """Long sequences now and then: here simply slow."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.number = 0

    def forward(self, inputs):
        if self.number in chosen:
            with diary.spends("long"):
                time.sleep(long_ms / 1e3)
        self.number += 1
        return inputs * self.scale


diary, model = Diary(), nn.Sequential(Sometimes(), network(384))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for inputs, targets in fetched(DataLoader(Vectors(64 * steps, 384), 64), diary):
    learn(model, optimizer, inputs, targets)
diary.close()
