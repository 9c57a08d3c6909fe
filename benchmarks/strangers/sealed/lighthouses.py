"""Which lighthouse is that? Night pictures from the bridge of a ship, a residual network, sixteen towers."""

import argparse
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Options:
    towers: int = 16
    side: int = 48
    pictures: int = 1536
    batch: int = 64
    epochs: int = 4
    rate: float = 3e-3


def night(options, count, seed):
    g = torch.Generator().manual_seed(seed)
    tower = torch.randint(options.towers, (count,), generator=g)
    line = torch.linspace(-1, 1, options.side)
    y, x = torch.meshgrid(line, line, indexing="ij")
    place = 0.8 * (torch.rand(count, 2, 1, 1, generator=g) - 0.5)
    tall = 0.25 + 0.04 * (tower % 4)[:, None, None]
    inside = ((x - place[:, 0]).abs() < 0.12) & ((y - place[:, 1]).abs() < tall)
    stripes = torch.sin((6 + 5 * (tower // 4))[:, None, None] * y) > 0
    sea = torch.rand(count, 3, options.side, options.side, generator=g) * 0.3
    light = torch.exp(-((x - place[:, 0]) ** 2 + (y - place[:, 1] + tall) ** 2) * 60)
    paint = torch.stack([inside.float(), (inside & stripes).float(), (inside & ~stripes).float()], 1)
    return (sea + 0.5 * paint + light[:, None]).to(memory_format=torch.channels_last), tower


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.one = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm_one, self.norm_two = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x):
        h = F.relu(self.norm_one(self.one(x)), inplace=True)
        return F.relu(self.norm_two(self.two(h)) + self.short(x), inplace=True)


def network(towers):
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1),
        Residual(32, 64, 1),
        Residual(64, 96, 2),
        Residual(96, 128, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, towers),
    )


def share_right(net, pictures, tower):
    net.eval()
    with torch.inference_mode():
        right = sum((net(a).argmax(1) == b).sum() for a, b in zip(pictures.split(128), tower.split(128)))
    net.train()
    return right.item() / len(tower)


def main(options):
    torch.manual_seed(0)
    pictures, tower = night(options, options.pictures, 1)
    held_out = night(options, 128, 2)
    net = network(options.towers).to(memory_format=torch.channels_last)
    steps = options.epochs * (options.pictures // options.batch)
    optimizer = torch.optim.SGD(net.parameters(), options.rate, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 20 * options.rate, total_steps=steps)
    start = time.perf_counter()
    for epoch in range(options.epochs):
        total = torch.zeros(())
        for rows in torch.randperm(options.pictures).split(options.batch):
            loss = F.cross_entropy(net(pictures[rows]), tower[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
        print(f"epoch {epoch}: loss {total * options.epochs / steps:.3f}", flush=True)
    print(f"training took {time.perf_counter() - start:.2f} s")
    print(f"right: {share_right(net, *held_out):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in vars(Options()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    main(Options(**vars(parser.parse_args())))
