"""Birds at a feeder: a residual network, trained by the book."""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset


def conv(a, b, stride=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))


class Residual(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.body = nn.Sequential(conv(a, b, stride), conv(b, b))
        self.skip = nn.Conv2d(a, b, 1, stride, bias=False)

    def forward(self, x):
        return self.body(x) + self.skip(x)


class BirdNet(nn.Sequential):
    def __init__(self, birds):
        blocks = [Residual(24, 32, 2), Residual(32, 64, 2), Residual(64, 96, 2)]
        super().__init__(conv(3, 24), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, birds))


class Average:
    """Exponential average of the weights: one fused operation for all of them."""

    def __init__(self, model, decay=0.995):
        self.decay = decay
        self.source = list(model.parameters())
        self.values = [p.detach().clone() for p in self.source]

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.values, [p.detach() for p in self.source], 1 - self.decay)


def photos(n, seed):
    """Prepared once: bytes, not floats, and in memory."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 20, (n,), generator=g)
    images = torch.randint(0, 200, (n, 3, 36, 36), generator=g, dtype=torch.uint8)
    images[:, :, :12] += (labels[:, None, None, None] * 2).to(torch.uint8)
    return TensorDataset(images, labels)


def augment(images):
    """The same random crop and flip for the whole batch."""
    top, left = torch.randint(0, 5, (2,)).tolist()
    images = images[:, :, top : top + 32, left : left + 32]
    images = images.flip(3) if torch.rand(()) < 0.5 else images
    return images.to(torch.float32, memory_format=torch.channels_last).div_(255)


@torch.inference_mode()
def evaluate(model, loader):
    model.eval()
    right = sum((model(augment(x)).argmax(1) == y).sum() for x, y in loader)
    model.train()
    return right.item() / len(loader.dataset)


def save(path, model, optimizer, epoch):
    """Written beside and renamed, so that a crash leaves a whole file."""
    part = path.with_suffix(".part")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, part)
    os.replace(part, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    torch.manual_seed(0)
    train = DataLoader(
        photos(6400, 0), args.batch, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True, prefetch_factor=4
    )
    held_out = DataLoader(photos(256, 1), 128)
    model = BirdNet(20).to(memory_format=torch.channels_last)
    average = Average(model)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4, foreach=True)
    schedule = OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(train))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    start = time.time()
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for images, labels in train:
            loss = criterion(model(augment(images)), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0, foreach=True)
            optimizer.step()
            schedule.step()
            average.update()
            total += loss.detach()
        save(Path("birds.pt"), model, optimizer, epoch)
        print(f"epoch {epoch}: loss {total.item() / len(train):.3f}, accuracy {evaluate(model, held_out):.3f}", flush=True)
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
