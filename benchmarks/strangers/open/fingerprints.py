"""Match fingerprints: contrastive pretraining (InfoNCE) of two views, with an averaged encoder that is kept."""

import math
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.a = nn.Conv2d(i, o, 3, 2, 1, bias=False)
        self.b = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(o), nn.BatchNorm2d(o)
        self.skip = nn.Conv2d(i, o, 1, 2, bias=False)

    def forward(self, x):
        h = F.relu(self.norm1(self.a(x)))
        return F.relu(self.skip(x) + self.norm2(self.b(h)))


def encoder(width=20, dim=64):
    blocks = [Block(1, width), Block(width, 2 * width), Block(2 * width, 4 * width)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, dim))


def ridges(n, generator):
    coarse = torch.randn(n, 1, 6, 6, generator=generator)
    flow = F.interpolate(coarse, size=(48, 48), mode="bicubic", align_corners=False)
    return torch.sin(9 * flow)


def two_views(prints, generator):
    top, left = torch.randint(0, 9, (2,), generator=generator).tolist()
    a, b = prints[:, :, :40, :40], prints[:, :, top : top + 40, left : left + 40]
    noise = 0.4 * torch.randn(2 * len(a), 1, 40, 40, generator=generator)
    return torch.cat([a, b]) + noise


def info_nce(z, temperature=0.1):
    a, b = F.normalize(z, dim=1).chunk(2)
    logits = a @ b.T / temperature
    target = torch.arange(len(a))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def main(steps=110, batch=64, warmup=10):
    torch.manual_seed(21)
    generator = torch.Generator().manual_seed(21)
    prints = ridges(2000, generator)
    net, kept = encoder(), encoder()
    kept.load_state_dict(net.state_dict())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: min(1.0, (i + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * i / steps)),
    )
    history = torch.zeros(steps)
    start = time.time()
    for step in range(steps):
        rows = torch.randint(0, len(prints), (batch,), generator=generator)
        loss = info_nce(net(two_views(prints[rows], generator)))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        history[step] = loss.detach()
        with torch.no_grad():
            torch._foreach_lerp_(list(kept.parameters()), list(net.parameters()), 0.02)
    print("loss", " ".join(f"{part.mean():.3f}" for part in history.split(22)))
    torch.save(kept.state_dict(), "fingerprints.pt")
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
