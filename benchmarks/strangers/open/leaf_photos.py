"""Classify photos of leaves into 12 species with a small convolutional network."""

import argparse
import io
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

REPAIRED = os.environ.get("REPAIRED") == "1"


def fake_jpeg(rng, side=320):
    small = rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((side, side), Image.BICUBIC)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


class LeafDataset(Dataset):
    def __init__(self, n):
        rng = np.random.default_rng(7)
        self.blobs = [fake_jpeg(rng) for _ in range(200)]
        self.labels = rng.integers(0, 12, n)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        img = Image.open(io.BytesIO(self.blobs[i % len(self.blobs)])).convert("RGB")
        img = img.resize((96, 96), Image.LANCZOS)
        x = np.asarray(img, dtype=np.float32) / 255.0
        x = (x - 0.45) / 0.22
        return torch.from_numpy(x.transpose(2, 0, 1).copy()), int(self.labels[i])


class DecodedLeafDataset(LeafDataset):
    """Photos that were decoded and resized once."""

    def __init__(self, n):
        super().__init__(n)
        self.decoded = [LeafDataset.__getitem__(self, i)[0] for i in range(len(self.blobs))]

    def __getitem__(self, i):
        return self.decoded[i % len(self.decoded)], int(self.labels[i])


class LeafNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 16, 5, stride=4, padding=2)
        self.c2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.c3 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.head = nn.Linear(64, 12)

    def forward(self, x):
        x = F.relu(self.c1(x))
        x = F.relu(self.c2(x))
        x = F.relu(self.c3(x))
        return self.head(x.mean((2, 3)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--images", type=int, default=1920)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()
    torch.manual_seed(0)
    data = DecodedLeafDataset(args.images) if REPAIRED else LeafDataset(args.images)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    net = LeafNet()
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    started = time.time()
    for epoch in range(args.epochs):
        net.train()
        for i, (x, y) in enumerate(loader):
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
            if i % 50 == 0:
                print(f"epoch {epoch} [{i}/{len(loader)}] loss {loss.item():.3f}")
    print(f"training took {time.time() - started:.2f} s")


if __name__ == "__main__":
    main()
