"""More evaluation than training."""

import sys

import torch
from torch.utils.data import DataLoader
from workload import Diary, Vectors, fetched, learn, network

epochs, train_steps, eval_steps = (int(word) for word in sys.argv[1:4])
diary, model = Diary(), network(384)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(epochs):
    model.train()
    for inputs, targets in fetched(DataLoader(Vectors(64 * train_steps, 384), 64), diary):
        learn(model, optimizer, inputs, targets)
    model.eval()
    with torch.no_grad(), diary.spends("evaluating"):
        for inputs, _ in DataLoader(Vectors(128 * eval_steps, 384), 128):
            model(inputs)
diary.close()
