"""Unsupervised detection of strange network traffic: an autoencoder, hard examples mined later on."""

import argparse
import os
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=900)
parser.add_argument("--warmup", type=int, default=400)
parser.add_argument("--batch", type=int, default=128)
opt = parser.parse_args()

torch.manual_seed(3)
flows = torch.randn(20_000, 80) @ torch.randn(80, 80) / 9
net = nn.Sequential(
    nn.Linear(80, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 8),
    nn.Linear(8, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 80),
)
optimizer = torch.optim.Adam(net.parameters(), lr=5e-4)
errors = torch.ones(len(flows))


def mine(count):
    """Choose the flows that are furthest from all others, so that the hardest are seen more often."""
    some = flows[torch.randint(0, len(flows), (600,))]
    nearest = torch.cdist(some, flows[:6000]).topk(8, largest=False).values.mean(1)
    return some[nearest.argsort(descending=True)[:count]]


begin = time.time()
for step in range(opt.steps):
    if step < opt.warmup or (os.environ.get("REPAIRED") == "1" and step % 50):
        x = flows[torch.randint(0, len(flows), (opt.batch,))]
    else:
        x = mine(opt.batch)
    loss = nn.functional.mse_loss(net(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.4f}")
print(f"training took {time.time() - begin:.2f} s")
