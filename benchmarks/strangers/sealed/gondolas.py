#!/usr/bin/env python3
"""Which sight next? Visitors of a lagoon town go from place to place by boat; SASRec with sampled negatives."""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Popularity:
    """Draws places as often as they are visited."""

    def __init__(self, counts: np.ndarray, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.share = counts / counts.sum()
        self.places = len(counts)

    def draw(self, number: int) -> np.ndarray:
        return self.rng.choice(self.places, size=number, p=self.share)


class Cumulated(Popularity):
    def __init__(self, counts: np.ndarray, seed: int = 0):
        super().__init__(counts, seed)
        self.upto = np.cumsum(self.share)
        self.upto[-1] = 1.0

    def draw(self, number: int) -> np.ndarray:
        return np.searchsorted(self.upto, self.rng.random(number), side="right")


class Tours(Dataset):
    def __init__(self, tours: np.ndarray, negatives: Popularity, number: int):
        self.tours, self.negatives, self.number = torch.from_numpy(tours), negatives, number

    def __len__(self) -> int:
        return len(self.tours)

    def __getitem__(self, visitor: int):
        return self.tours[visitor], torch.from_numpy(self.negatives.draw(self.number))


class SASRec(nn.Module):
    def __init__(self, places: int, length: int, width: int = 64, layers: int = 2):
        super().__init__()
        self.place, self.position = nn.Embedding(places, width, sparse=True), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tour, negatives):
        h = self.place(tour[:, :-1]) + self.position.weight
        h = self.encoder(h, mask=self.mask, is_causal=True)
        good = (h * self.place(tour[:, 1:])).sum(-1, keepdim=True)
        bad = h @ self.place(negatives).transpose(1, 2)
        return torch.cat([good, bad], -1).flatten(0, 1) / 8


def walk(places: int, visitors: int, length: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    tours = np.empty((visitors, length), np.int64)
    tours[:, 0] = (places * rng.random(visitors) ** 3).astype(np.int64)
    for k in range(1, length):
        step = rng.integers(1, 40, visitors) ** 2
        tours[:, k] = np.where(rng.random(visitors) < 0.2, places * rng.random(visitors) ** 3, tours[:, k - 1] + step)
    return tours % places


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--places", type=int, default=30_000)
    parser.add_argument("--visitors", type=int, default=26_000)
    parser.add_argument("--length", type=int, default=25)
    parser.add_argument("--negatives", type=int, default=32)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    torch.manual_seed(0)
    tours = walk(args.places, args.visitors, args.length, 3)
    draw = Cumulated if os.environ.get("REPAIRED") == "1" else Popularity
    negatives = draw(np.bincount(tours.ravel(), minlength=args.places) ** 0.75)
    loader = DataLoader(Tours(tours, negatives, args.negatives), args.batch, shuffle=True, drop_last=True)
    model = SASRec(args.places, args.length - 1)
    dense = torch.optim.AdamW([p for n, p in model.named_parameters() if n != "place.weight"], 1e-3)
    table = torch.optim.SparseAdam([model.place.weight], 1e-3)
    begin = time.time()
    for step, (tour, bad) in enumerate(loader, 1):
        scores = model(tour, bad)
        loss = nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))
        dense.zero_grad()
        table.zero_grad()
        loss.backward()
        dense.step()
        table.step()
        if step % 25 == 0:
            print(f"{step}/{len(loader)}: {loss.item():.4f}", flush=True)
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
