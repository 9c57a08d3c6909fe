"""A transformer that forecasts the load of a power grid."""

import argparse
import gzip
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Load(Dataset):
    def __init__(self, hours=20000, context=24):
        t = torch.arange(hours, dtype=torch.float32)
        daily = torch.sin(2 * torch.pi * t / 24)
        weekly = 0.5 * torch.sin(2 * torch.pi * t / 168)
        self.series = daily + weekly + 0.1 * torch.randn(hours)
        self.context = context

    def __len__(self):
        return 4800

    def __getitem__(self, i):
        window = self.series[i : i + self.context + 1]
        return window[:-1, None], window[-1:]


class Forecaster(nn.Module):
    def __init__(self, dim=192, layers=3):
        super().__init__()
        self.inp = nn.Linear(1, dim)
        self.pos = nn.Parameter(torch.zeros(1, 24, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        return self.out(self.encoder(self.inp(x) + self.pos)[:, -1])


def save(path, model, optimizer, step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    with gzip.open(path + ".tmp", "wb", compresslevel=6) as file:
        torch.save(state, file)
    with open(path + ".tmp", "rb+") as file:
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


parser = argparse.ArgumentParser()
parser.add_argument("--save-every", type=int, default=150 if os.environ.get("REPAIRED") == "1" else 10)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--lr", type=float, default=1e-4)
args = parser.parse_args()

model = Forecaster()
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
loader = DataLoader(Load(), batch_size=args.batch, shuffle=True)
os.makedirs("checkpoints", exist_ok=True)
start = time.time()
for step, (context, target) in enumerate(loader, 1):
    loss = nn.functional.mse_loss(model(context), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % args.save_every == 0:
        save("checkpoints/last.pt.gz", model, optimizer, step)
    if step % 50 == 0:
        print(f"{step}/{len(loader)} mse {loss.item():.4f}", flush=True)
print(f"training took {time.time() - start:.2f} s")
