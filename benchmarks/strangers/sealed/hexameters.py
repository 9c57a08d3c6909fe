"""Long or short? The feet of hexameters. Groups of two to five letters are hashed into a table, as fastText does."""

import os
import random
import time

import torch
from torch import nn

START = ["b", "c", "d", "f", "g", "l", "m", "n", "p", "r", "s", "t", "v", "qu", "tr", "pl", ""]
SIZES = (2, 3, 4, 5)
BATCH, LENGTH, BUCKETS, STEPS = 16, 48, 100_000, 170


def verse(rng):
    """Letters, and for each of them: no vowel, short, or long (a diphthong, or two consonants after it)."""
    letters, feet = "", []
    while len(letters) < LENGTH:
        onset, vowel = rng.choice(START), rng.choice(["a", "e", "i", "o", "u", "ae", "au"])
        coda = rng.choice(["", "", "n", "s", "r", "x"])
        long = len(vowel) == 2 or bool(coda)
        letters += onset + vowel + coda + (" " if rng.random() < 0.4 else "")
        feet += [0] * len(onset) + [1 + long] * len(vowel) + [0] * (len(letters) - len(feet) - len(onset) - len(vowel))
    return [ord(c) for c in letters[:LENGTH]], feet[:LENGTH]


def hashed(letters):
    """The bucket of every group of letters around every place."""
    groups = []
    for size in SIZES:
        value = torch.full_like(letters, size)
        for shift in range(size):
            value = (value * 1_000_003 + letters.roll(size // 2 - shift, 1)) % 2_147_483_647
        groups.append(value % BUCKETS)
    return torch.stack(groups, 2)


class Scanner(nn.Module):
    def __init__(self, width=64, out=3):
        super().__init__()
        self.groups = nn.EmbeddingBag(BUCKETS, width, mode="mean")
        self.body = nn.LSTM(width, 96, bidirectional=True, batch_first=True)
        self.head = nn.Sequential(nn.LayerNorm(192), nn.Linear(192, 192), nn.GELU(), nn.Linear(192, out))

    def forward(self, groups):
        h = self.groups(groups.flatten(0, 1)).unflatten(0, groups.shape[:2])
        return self.head(self.body(h)[0])


def data(count, seed):
    rng = random.Random(seed)
    letters, feet = zip(*[verse(rng) for _ in range(count)])
    return hashed(torch.tensor(letters)), torch.tensor(feet)


def main():
    torch.manual_seed(1)
    groups, feet = data(4000, 1)
    model = Scanner()
    fused = True if os.environ.get("REPAIRED") == "1" else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), amsgrad=True, fused=fused)
    begin = time.time()
    right = 0.0
    for step in range(1, STEPS + 1):
        rows = torch.randint(len(groups), (BATCH,))
        logits = model(groups[rows])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), feet[rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += (logits.argmax(-1) == feet[rows]).float().mean().item()
        if step % 85 == 0:
            print(f"step {step}: {right / 85:.3f} of the letters right", flush=True)
            right = 0.0
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
