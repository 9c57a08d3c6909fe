"""Nothing wrong: data in memory, work in the network."""

import sys

import torch
from torch.utils.data import DataLoader
from workload import Diary, Vectors, fetched, learn, network

width, batch, steps = (int(word) for word in sys.argv[1:4])
diary, model = Diary(), network(width)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for inputs, targets in fetched(DataLoader(Vectors(batch * steps, width), batch), diary):
    learn(model, optimizer, inputs, targets)
diary.close()
