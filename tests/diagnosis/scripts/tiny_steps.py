"""A network so small that a step is all overhead."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from workload import Diary, fetched, learn, network

width, batch, steps = (int(word) for word in sys.argv[1:4])
diary, model = Diary(), network(width, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(batch * steps, width), torch.randint(0, 10, (batch * steps,)))
for inputs, targets in fetched(DataLoader(data, batch), diary):
    learn(model, optimizer, inputs, targets)
diary.close()
