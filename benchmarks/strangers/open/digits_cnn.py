"""Train a CNN on 28x28 drawings of digits, with random shifts and noise."""

import argparse
import logging
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("digits")


class Drawings(Dataset):
    def __init__(self, n, train):
        rng = np.random.default_rng(3 if train else 4)
        self.x = rng.random((n, 28, 28), dtype=np.float32)
        self.y = rng.integers(0, 10, n)
        self.train = train

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        if self.train:
            x = np.roll(x, (np.random.randint(-2, 3), np.random.randint(-2, 3)), (0, 1))
        return torch.from_numpy(x[None]), self.y[i]


def build():
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(48 * 49, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10),
    )


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hits = total = 0
    for x, y in loader:
        hits += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    return hits / total


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("-e", "--epochs", default=2, type=int)
    ap.add_argument("-b", "--batch", default=64, type=int)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    train = DataLoader(Drawings(9600, True), a.batch, shuffle=True, drop_last=True)
    test = DataLoader(Drawings(960, False), 2 * a.batch)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=a.epochs * len(train))
    ce = nn.CrossEntropyLoss(label_smoothing=0.05)
    begin = time.time()
    for e in range(a.epochs):
        model.train()
        for n, (x, y) in enumerate(train):
            loss = ce(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            if n % 50 == 0:
                log.info("epoch %d batch %d loss %.4f", e, n, loss.item())
        log.info("epoch %d accuracy %.3f", e, accuracy(model, test))
    torch.save(model.state_dict(), "digits.pt")
    print(f"training took {time.time() - begin:.2f} s")
