"""Long preparation before the first step."""

import sys
import time

import torch
from torch.utils.data import DataLoader
from workload import Diary, Vectors, fetched, learn, network

wait_s, steps = float(sys.argv[1]), int(sys.argv[2])
diary = Diary()
with diary.spends("preparing"):
    time.sleep(wait_s)
model = network(384)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for inputs, targets in fetched(DataLoader(Vectors(64 * steps, 384), 64), diary):
    learn(model, optimizer, inputs, targets)
diary.close()
