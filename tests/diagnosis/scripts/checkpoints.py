"""A blocking checkpoint every N steps."""

import sys
import time

import torch
from torch.utils.data import DataLoader
from workload import Diary, Vectors, fetched, learn, network

every, save_ms, steps = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
diary, model = Diary(), network(384)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number, (inputs, targets) in enumerate(fetched(DataLoader(Vectors(64 * steps, 384), 64), diary), 1):
    learn(model, optimizer, inputs, targets)
    if number % every == 0:
        with diary.spends("saving"):
            time.sleep(save_ms / 1e3)
diary.close()
