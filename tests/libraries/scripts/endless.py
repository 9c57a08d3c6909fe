"""Generators that never end: `while True: yield from loader`, islice, a cycling iterator, and an early stop."""

from itertools import cycle, islice

import counted
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Endless(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(3)
        while True:
            yield torch.randn(6, generator=generator), torch.randn(1, generator=generator)


def forever(loader):
    while True:
        yield from loader


model, losses, steps = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)), [], 0
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
rows = counted.Rows(torch.randn(40, 6), torch.randn(40, 1))


def train_on(x, y):
    global steps
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    steps += 1


batches = forever(DataLoader(rows, 8, shuffle=True))
for _ in range(12 * counted.SCALE):
    train_on(*next(batches))
del batches  # while a loader's iterator lives, steps without its batches do not count
for x, y in islice(DataLoader(Endless(), 8), 9 * counted.SCALE):
    train_on(x, y)
iterator = iter(DataLoader(Endless(), 8, num_workers=1))
while True:
    train_on(*next(iterator))
    if len(losses) >= 30 * counted.SCALE:
        break
del iterator
for number, (x, y) in enumerate(cycle(DataLoader(rows, 8))):
    train_on(x, y)
    if number == 11:  # the early stop; `cycle` keeps the first epoch's batches and fetches none afterwards
        break
counted.finish(model, train=steps, losses=losses, forwards=steps)
