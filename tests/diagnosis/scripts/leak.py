"""Something kept from every step."""

import sys

import torch
from torch.utils.data import DataLoader
from workload import Diary, Vectors, fetched, learn, network

kept_mb, steps = float(sys.argv[1]), int(sys.argv[2])
diary, model, history = Diary(), network(512), []
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for inputs, targets in fetched(DataLoader(Vectors(128 * steps, 512), 128), diary):
    learn(model, optimizer, inputs, targets)
    history.append(torch.ones(int(kept_mb * 250_000)))
diary.close(kept_bytes=sum(one.nbytes for one in history))
