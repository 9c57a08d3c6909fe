"""Full collections over many objects that never die."""

import gc
import sys

import torch
from torch.utils.data import DataLoader
from workload import Diary, Vectors, fetched, learn, network

objects, every, steps = (int(word) for word in sys.argv[1:4])
records = [{"id": number, "tags": [number]} for number in range(objects)]
diary, model = Diary(), network(384)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number, (inputs, targets) in enumerate(fetched(DataLoader(Vectors(64 * steps, 384), 64), diary)):
    learn(model, optimizer, inputs, targets)
    if number % every == 0:
        with diary.spends("collecting"):
            gc.collect()
diary.close(objects=len(records))
