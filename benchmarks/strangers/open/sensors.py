"""Detect faults of a machine from eight vibration sensors, with a 1-D CNN."""

import json
import os
import time

import torch
from torch import nn


class Journal:
    """A log of the training that survives a crash of the machine."""

    def __init__(self, path, every):
        self.file = open(path, "a")
        self.every = every
        self.count = 0

    def write(self, model, **values):
        self.count += 1
        if self.count % self.every:
            return
        values["weights"] = {name: [round(v, 5) for v in p.detach().flatten()[:6000].tolist()]
                             for name, p in model.named_parameters()}
        self.file.write(json.dumps(values) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())


class FaultNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(8, 32, 9, stride=2), nn.ReLU(), nn.Conv1d(32, 64, 9, stride=2), nn.ReLU(),
            nn.Conv1d(64, 64, 9, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        )
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        return self.head(self.features(x))


signals = torch.randn(2048, 8, 512)
faults = torch.randint(0, 5, (2048,))
net = FaultNet()
opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
journal = Journal("journal.jsonl", every=60 if os.environ.get("REPAIRED") == "1" else 1)
begin = time.monotonic()
for epoch in range(12):
    for first in range(0, len(signals), 32):
        x, y = signals[first : first + 32], faults[first : first + 32]
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        journal.write(net, epoch=epoch, first=first, loss=loss.item())
    print("epoch", epoch, "done, loss", loss.item())
print(f"training took {time.monotonic() - begin:.2f} s")
