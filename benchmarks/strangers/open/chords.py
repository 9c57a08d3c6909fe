"""The next chord of a song: a small decoder-only transformer, weight decay, warm-up and cosine, checkpoints per epoch."""

import json
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

ROOTS = "C C# D D# E F F# G G# A A# B".split()
KINDS = ["", "m", "7", "m7", "maj7", "dim"]
CHORDS = [r + k for r in ROOTS for k in KINDS]
INDEX = {c: i for i, c in enumerate(CHORDS)}
CADENCES = [[0, 5, 7, 0], [0, 9, 2, 7], [0, 7, 9, 5], [2, 7, 0, 0], [9, 5, 0, 7]]


def song(rng, bars):
    key, out = rng.randrange(12), []
    while len(out) < bars:
        for step in rng.choice(CADENCES):
            kind = "m" if step in (2, 9) else rng.choice(["", "", "7", "maj7"])
            out.append(ROOTS[(key + step) % 12] + kind)
        if rng.random() < 0.05:
            key = (key + 2) % 12
    return out[:bars]


class Songbook(Dataset):
    def __init__(self, n, bars, seed):
        rng = random.Random(seed)
        self.rows = torch.tensor([[INDEX[c] for c in song(rng, bars + 1)] for _ in range(n)])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i, :-1], self.rows[i, 1:]


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.heads = heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class Player(nn.Module):
    def __init__(self, d=128, heads=4, depth=3, bars=64):
        super().__init__()
        self.chord, self.place = nn.Embedding(len(CHORDS), d), nn.Embedding(bars, d)
        self.blocks = nn.Sequential(*[Block(d, heads) for _ in range(depth)])
        self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, len(CHORDS)))

    def forward(self, x):
        return self.out(self.blocks(self.chord(x) + self.place.weight[: x.shape[1]]))


@torch.no_grad()
def perplexity(net, loader):
    net.eval()
    losses = [F.cross_entropy(net(x).flatten(0, 1), y.flatten()) for x, y in loader]
    net.train()
    return math.exp(torch.stack(losses).mean())


def main(epochs=3, batch=20, warmup=20):
    torch.manual_seed(3)
    loader = DataLoader(Songbook(1200, 64, 0), batch, shuffle=True, drop_last=True)
    held_out = DataLoader(Songbook(60, 64, 1), 30)
    net = Player()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05)
    steps = epochs * len(loader)
    schedule = LambdaLR(optimizer, lambda s: min(s / warmup, 0.5 + 0.5 * math.cos(math.pi * s / steps)))
    history = []
    start = time.time()
    for epoch in range(epochs):
        for x, y in loader:
            loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten(), label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            history.append(loss.item())
        torch.save(net.state_dict(), f"player-{epoch}.pt")
        Path("history.json").write_text(json.dumps(history))
        print(f"epoch {epoch}: loss {sum(history[-20:]) / 20:.3f}, perplexity {perplexity(net, held_out):.2f}")
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
