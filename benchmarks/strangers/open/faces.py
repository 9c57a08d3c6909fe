"""Recognise people: a triplet net with the hardest positive and negative of the batch, recall@1 on a gallery."""

import argparse
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--people", type=int, default=16, help="per batch")
parser.add_argument("--shots", type=int, default=4, help="per person")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--check-every", type=int, default=30)
parser.add_argument("--margin", type=float, default=0.3)
args = parser.parse_args()
tidy = os.environ.get("REPAIRED") == "1"


class FaceNet(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 24, 5, 2, 2), nn.ReLU(), nn.Conv2d(24, 48, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(48, 64, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 36, dim),
        )

    def forward(self, x):
        return F.normalize(self.body(x), dim=1)


class People:
    def __init__(self, n, g):
        self.g = g
        base = torch.randn(n, 1, 12, 12, generator=g)
        self.base = F.interpolate(base, scale_factor=4, mode="bilinear")

    def photos(self, who):
        x = self.base[who]
        light = 0.7 + 0.6 * torch.rand(len(who), 1, 1, 1, generator=self.g)
        return x * light + 0.5 * torch.randn(x.shape, generator=self.g)


def triplet_loss(e, who):
    if tidy:
        d = torch.cdist(e, e).square()
        same = who[:, None] == who
        pos = d.masked_fill(~same, -1.0).amax(1)
        neg = d.masked_fill(same, 1e9).amin(1)
        return F.relu(pos - neg + args.margin).mean()
    losses = []
    for i in range(len(e)):
        d = (e - e[i]).pow(2).sum(1)
        hardest_positive = d[who == who[i]].max()
        hardest_negative = d[who != who[i]].min()
        loss = hardest_positive - hardest_negative + args.margin
        if loss.item() > 0:
            losses.append(loss)
    return torch.stack(losses).sum() / len(e) if losses else (e * 0).sum()


@torch.no_grad()
def recall(net, gallery, probes, who):
    if tidy:
        known = torch.cat([net(part) for part in gallery.split(64)])
    else:
        known = torch.cat([net(photo[None]) for photo in gallery])
    nearest = torch.cdist(net(probes), known).argmin(1)
    return (who[nearest] == who[: len(probes)]).float().mean().item()


torch.manual_seed(5)
people = People(800, torch.Generator().manual_seed(5))
gallery_who = torch.arange(800).flip(0)
gallery, probes = people.photos(gallery_who), people.photos(gallery_who[:100])
net = FaceNet()
opt = torch.optim.Adam(net.parameters(), 1e-3)
start = time.time()
for step in range(args.steps):
    who = torch.randperm(800)[: args.people].repeat_interleave(args.shots)
    loss = triplet_loss(net(people.photos(who)), who)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (step + 1) % args.check_every == 0:
        print(f"{step + 1:4d} loss {loss.item():.3f} recall@1 {recall(net, gallery, probes, gallery_who):.3f}")
print(f"training took {time.time() - start:.2f} s")
