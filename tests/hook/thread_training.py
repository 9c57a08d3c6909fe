"""A training on a thread of its own; the process is killed as soon as the thread has ended, as Ray Train does."""

import os
import threading

import torch


def train() -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(torch.ones(14, 4), batch_size=2):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


thread = threading.Thread(target=train)
thread.start()
thread.join()
os._exit(3)
