"""How many folds does a crease pattern need? Vertices as tokens, a small attention network, trained with accelerate."""

import os
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CONFIG = {
    "seed": 60,
    "threads": 1 if os.environ.get("REPAIRED") == "1" else 12,
    "batch": 32,
    "vertices": 24,
    "width": 96,
    "layers": 3,
    "lr": 1e-3,
    "steps": 280,
}


def patterns(count, vertices, seed):
    g = torch.Generator().manual_seed(seed)
    places = torch.rand(count, vertices, 2, generator=g)
    distance = torch.cdist(places, places)
    valleys = (torch.rand(count, vertices, generator=g) < 0.5).float()
    creases = (distance < 0.25).float() - torch.eye(vertices)
    folds = (creases * (valleys[:, :, None] != valleys[:, None])).sum((1, 2)) / vertices
    return torch.cat([places, valleys[..., None], creases.sum(2, keepdim=True) / 4], 2), folds


class Attention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
        self.near = nn.Parameter(torch.ones(heads))

    def forward(self, x, bias):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        score = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 - self.near[:, None, None] * bias[:, None]
        x = x + self.out((score.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.feed(self.norm2(x))


class FoldCounter(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.layers = nn.ModuleList(Attention(width) for _ in range(layers))
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        bias = torch.cdist(x[..., :2], x[..., :2])
        h = self.first(x)
        for layer in self.layers:
            h = layer(h, bias)
        return self.last(h.mean(1)).squeeze(1)


def main(config):
    set_seed(config["seed"])
    torch.set_num_threads(config["threads"])
    accelerator = Accelerator(cpu=True)
    x, folds = patterns(4096, config["vertices"], 1)
    loader = DataLoader(TensorDataset(x, folds), batch_size=config["batch"], shuffle=True, drop_last=True)
    model = FoldCounter(config["width"], config["layers"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    began, step = time.perf_counter(), 0
    while step < config["steps"]:
        for x, folds in loader:
            loss = nn.functional.smooth_l1_loss(model(x), folds)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 50 == 0:
                accelerator.print(f"step {step}: {loss.item():.4f}", flush=True)
            if step == config["steps"]:
                break
    accelerator.print(f"training took {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main(CONFIG)
