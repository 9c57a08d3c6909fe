"""Recognise grey seals by the pattern of their fur: contrastive learning with a memory of earlier embeddings."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

# ---- settings
SEALS = 400
SIZE = 32
BATCH = 48
STEPS = 420
TEMPERATURE = 0.1
KEPT = 2048


def patterns(n, g):
    """Blotches that belong to each seal."""
    coarse = torch.randn(n, 1, 8, 8, generator=g)
    return F.interpolate(coarse, size=(SIZE, SIZE), mode="bicubic", align_corners=False)


def photo(fur, g):
    shift = torch.randint(-3, 4, (2,), generator=g).tolist()
    light = 0.7 + 0.6 * torch.rand(len(fur), 1, 1, 1, generator=g)
    return fur.roll(shift, (2, 3)) * light + 0.4 * torch.randn(fur.shape, generator=g)


class Embedder(nn.Module):
    def __init__(self, width=24, out=128):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        self.project = nn.Linear(2 * width * (SIZE // 4) ** 2, out)

    def forward(self, x):
        return F.normalize(self.project(self.features(x)), dim=1)


class Memory:
    """Embeddings of earlier photos and whose they are."""

    def __init__(self):
        self.z = torch.zeros(0, 128)
        self.seal = torch.zeros(0, dtype=torch.long)

    def add(self, z, seal):
        self.z = torch.cat([self.z, z.detach()])
        self.seal = torch.cat([self.seal, seal])
        if os.environ.get("REPAIRED") == "1":
            self.z, self.seal = self.z[-KEPT:], self.seal[-KEPT:]


def contrast(z, seal, memory):
    others = torch.cat([z, memory.z])
    whose = torch.cat([seal, memory.seal])
    score = z @ others.T / TEMPERATURE
    itself = torch.zeros_like(score, dtype=torch.bool)
    itself[:, : len(z)].fill_diagonal_(True)
    score = score.masked_fill(itself, -1e4)
    log_p = F.log_softmax(score, dim=1)
    same = (seal[:, None] == whose[None, :]) & ~itself
    return -((log_p * same).sum(1) / same.sum(1).clamp(min=1)).mean()


def train():
    torch.manual_seed(21)
    g = torch.Generator().manual_seed(4)
    fur = patterns(SEALS, g)
    model = Embedder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    memory = Memory()
    t0 = time.time()
    for step in range(1, STEPS + 1):
        seal = torch.randint(0, SEALS, (BATCH,), generator=g)
        x = photo(fur[seal], g)
        z = model(x)
        loss = contrast(z, seal, memory)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        memory.add(z, seal)
        if step % 60 == 0:
            print("step %4d  loss %.3f" % (step, loss.item()), flush=True)
    print("training took %.2f s" % (time.time() - t0))


if __name__ == "__main__":
    train()
