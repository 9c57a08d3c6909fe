"""The training runs in a thread, as under a web server or a notebook's widget; the main thread only waits."""

import threading

import counted
import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters())
losses, steps = [], 0


def train():
    global steps
    for _ in range(3 * counted.SCALE):
        for x, y in DataLoader(counted.Rows(torch.randn(64, 8), torch.randint(0, 2, (64,))), 8, shuffle=True):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            steps += 1


thread = threading.Thread(target=train)
thread.start()
thread.join()
counted.finish(model, train=steps, losses=losses)
