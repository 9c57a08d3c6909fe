"""Tell eight kinds of kite from pictures in the sky: a small ResNet, SGD with momentum, as in a course on vision."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def make_sky(count, seed):
    gen = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 8, (count,), generator=gen)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 40), torch.linspace(-1, 1, 40), indexing="ij")
    cx, cy = (0.8 * torch.rand(2, count, 1, 1, generator=gen) - 0.4)
    u, v = x - cx, y - cy
    power = 0.5 + 0.4 * kind.float()[:, None, None]
    shape = (u.abs() ** power + (1.3 * v.abs()) ** power < 0.5).float()
    sky = 0.5 + 0.2 * y + 0.15 * torch.randn(count, 40, 40, generator=gen)
    colours = torch.rand(count, 3, 1, 1, generator=gen)
    return (sky[:, None] * (1 - shape[:, None]) + colours * shape[:, None]).sub(0.5), kind


class Block(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.short = nn.Sequential()
        if stride != 1 or cin != cout:
            self.short = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.short(x))


class SmallResNet(nn.Module):
    def __init__(self, classes=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.blocks = nn.Sequential(Block(24, 24), Block(24, 48, 2), Block(48, 48), Block(48, 96, 2))
        self.fc = nn.Linear(96, classes)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


def accuracy(net, loader):
    net.eval()
    hits = total = 0
    with torch.no_grad():
        for images, kind in loader:
            hits += (net(images).argmax(1) == kind).sum().item()
            total += len(kind)
    net.train()
    return hits / total


def main():
    torch.manual_seed(5)
    train_loader = DataLoader(TensorDataset(*make_sky(736, 1)), batch_size=64, shuffle=True)
    test_loader = DataLoader(TensorDataset(*make_sky(256, 2)), batch_size=128)
    net = SmallResNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3 * len(train_loader))
    begin = time.time()
    for epoch in range(3):
        running = 0.0
        for images, kind in train_loader:
            flipped = torch.rand(len(images)) < 0.5
            images[flipped] = images[flipped].flip(-1)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), kind, label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            scheduler.step()
            running += loss.item()
        print(f"epoch {epoch + 1}: loss {running / len(train_loader):.3f}, test {accuracy(net, test_loader):.3f}", flush=True)
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
