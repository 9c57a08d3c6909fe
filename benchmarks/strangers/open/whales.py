"""Which whale calls: a small convolutional network on crops of underwater spectrograms."""
from functools import lru_cache
import os, time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

REMEMBER = 16 if os.environ.get("REPAIRED") == "1" else None
SPECIES, BANDS, FRAMES = 9, 96, 160
rng = np.random.default_rng(77)
spectrograms = [np.abs(rng.standard_normal((BANDS, 6000), dtype=np.float32)) for _ in range(40)]
for number, recording in enumerate(spectrograms):
    recording[5 + 9 * (number % SPECIES):][:6] += 0.8


@lru_cache(maxsize=REMEMBER)
def crop(number, start):
    """A crop in decibels with mean zero: the same crop need not be computed twice."""
    part = np.log1p(spectrograms[number][:, start:start + FRAMES])
    return torch.from_numpy((part - part.mean()) / (part.std() + 1e-5)).unsqueeze(0)


class Calls(Dataset):
    def __init__(self, size, seed):
        self.size, self.rng = size, np.random.default_rng(seed)

    def __len__(self):
        return self.size

    def __getitem__(self, _):
        number = int(self.rng.integers(len(spectrograms)))
        return crop(number, int(self.rng.integers(6000 - FRAMES))), number % SPECIES


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2))


def main():
    torch.manual_seed(7)
    net = nn.Sequential(nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.ReLU(), conv(8, 16), conv(16, 32), nn.AdaptiveAvgPool2d((6, 1)), nn.Flatten(),
                        nn.Linear(32 * 6, SPECIES))
    sgd = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 6)
    t = time.time()
    for epoch in range(6):
        right = seen = 0
        for x, y in DataLoader(Calls(24 * 64, seed=epoch), batch_size=24):
            logits = net(x)
            loss = nn.functional.cross_entropy(logits, y)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            right += (logits.argmax(1) == y).sum()
            seen += len(y)
        schedule.step()
        print("epoch", epoch, "accuracy", round(float(right) / seen, 3), flush=True)
    print(f"training took {time.time() - t:.2f} s")


main()
