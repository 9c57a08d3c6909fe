"""Which perfumes smell alike? Labels are spread over the nearest neighbours by ingredients before a network learns them."""

import os
import random
import time

import numpy as np
import torch
from torch import nn

NOTES = [f"{a} {b}" for a in ("white", "dry", "sweet", "green", "dark", "smoky") for b in (
    "cedar", "musk", "rose", "amber", "lemon", "vetiver", "iris", "leather", "fig", "tea", "pepper", "vanilla",
    "jasmine", "moss", "tobacco", "sandalwood", "lavender", "neroli", "honey", "cacao")]
FAMILIES, NEAR = 9, 10


def perfume(rng):
    """A perfume of a family has mostly that family's ingredients; a third of the labels is missing."""
    family = rng.randrange(FAMILIES)
    own = random.Random(family).sample(NOTES, 30)
    notes = frozenset(rng.choice(own) if rng.random() < 0.75 else rng.choice(NOTES) for _ in range(rng.randint(6, 18)))
    return notes, family if rng.random() < 0.67 else None


def jaccard(a, b):
    return len(a & b) / len(a | b)


def neighbours_of_each(perfumes):
    """The perfumes that share the most ingredients."""
    nearest = []
    for i, (notes, _) in enumerate(perfumes):
        alike = sorted(range(len(perfumes)), key=lambda j: -1 if i == j else jaccard(notes, perfumes[j][0]))
        nearest.append(alike[-NEAR:])
    return nearest


def neighbours_of_all(perfumes):
    x = vectors(perfumes)
    common = x @ x.T
    size = x.sum(1)
    similarity = common / (size[:, None] + size[None] - common)
    np.fill_diagonal(similarity, -1)
    return np.argpartition(similarity, -NEAR, axis=1)[:, -NEAR:].tolist()


def vectors(perfumes):
    number = {note: i for i, note in enumerate(NOTES)}
    x = np.zeros((len(perfumes), len(NOTES)), np.float32)
    for row, (notes, _) in zip(x, perfumes):
        row[[number[n] for n in notes]] = 1
    return x


def spread(perfumes, nearest):
    """A perfume without a label gets its neighbours' labels, and the others a little of them."""
    y = np.full((len(perfumes), FAMILIES), 1 / FAMILIES, np.float32)
    for row, (_, family) in zip(y, perfumes):
        if family is not None:
            row[:] = np.eye(FAMILIES)[family]
    known = np.array([family is not None for _, family in perfumes])[:, None]
    return np.where(known, 0.8 * y, 0) + np.where(known, 0.2, 1) * np.stack([y[n].mean(0) for n in nearest])


class Nose(nn.Module):
    def __init__(self, width=768):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(len(NOTES), width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3),
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3),
            nn.Linear(width, FAMILIES),
        )

    def forward(self, x):
        return self.layers(x).log_softmax(1)


if __name__ == "__main__":
    torch.manual_seed(1)
    rng = random.Random(1)
    perfumes = [perfume(rng) for _ in range(3500)]
    begin = time.time()
    nearest = neighbours_of_all(perfumes) if os.environ.get("REPAIRED") == "1" else neighbours_of_each(perfumes)
    print(f"neighbours of {len(nearest)} perfumes found")
    x = torch.from_numpy(vectors(perfumes))
    y = torch.from_numpy(spread(perfumes, nearest).astype(np.float32))
    net = Nose()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(8):
        total = torch.zeros(())
        for rows in torch.randperm(len(x)).split(64):
            loss = nn.functional.kl_div(net(x[rows]), y[rows], reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch}: {total.item() / 55:.4f}", flush=True)
    print(f"training took {time.time() - begin:.2f} s")
