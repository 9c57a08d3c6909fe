"""Lightning Fabric: a plain loop, set up by Fabric, with clipping and a held-out pass."""

import counted
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))
model, optimizer = fabric.setup(network, torch.optim.AdamW(network.parameters(), lr=1e-2))
rows = counted.Rows(torch.randn(96, 16), torch.randint(0, 3, (96,)))
training, testing = fabric.setup_dataloaders(DataLoader(rows, 8, shuffle=True), DataLoader(rows, 24))
losses, steps, tested = [], 0, 0
for _ in range(2 * counted.SCALE):
    model.train()
    for x, y in training:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        losses.append(loss)
        steps += 1
    model.eval()
    with torch.no_grad():
        for x, y in testing:
            losses.append(nn.functional.cross_entropy(model(x), y))
            tested += 1
counted.finish(network, train=steps, evaluation=tested, losses=losses, forwards=steps + tested)
