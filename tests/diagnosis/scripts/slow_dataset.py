"""num_workers=0 and a dataset that waits for something at each sample."""

import sys

import torch
from torch.utils.data import DataLoader
from workload import Diary, Vectors, fetched, learn, network

sample_ms, batch, steps = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
diary, model = Diary(), network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for inputs, targets in fetched(DataLoader(Vectors(batch * steps, work_s=sample_ms / 1e3), batch), diary):
    learn(model, optimizer, inputs, targets)
diary.close()
