"""Predict the solubility of molecules: a graph transformer with distances between atoms as attention bias."""

import os
import time
from dataclasses import dataclass

import networkx as nx
import numpy as np
import torch
from scipy.sparse.csgraph import shortest_path
from torch import nn
from torch.utils.data import DataLoader, Dataset

REPAIRED = os.environ.get("REPAIRED") == "1"


@dataclass
class Config:
    molecules: int = 1200
    epochs: int = 6
    batch: int = 24
    width: int = 64
    layers: int = 2
    farthest: int = 20
    lr: float = 4e-4


cfg = Config()


class Molecules(Dataset):
    """Atoms and bonds of random molecules: a chain with branches and a few rings."""

    def __init__(self, n):
        rng = np.random.default_rng(8)
        self.items = []
        for size in rng.integers(34, 58, n):
            bonds = [(i, int(max(0, i - rng.integers(1, 4)))) for i in range(1, size)]
            bonds += [(int(a), int(b)) for a, b in rng.integers(0, size, (3, 2)) if a != b]
            atoms = rng.integers(1, 12, size)
            self.items.append((atoms, bonds, float(np.cos(atoms).mean() * 5 + len(bonds) / size)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def distances(n, bonds):
    """Number of bonds between each two atoms."""
    d = np.full((n, n), cfg.farthest)
    if REPAIRED:
        adjacency = np.zeros((n, n))
        adjacency[tuple(np.array(bonds).T)] = 1
        return np.minimum(d, shortest_path(adjacency, directed=False, unweighted=True))
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(bonds)
    for a, lengths in nx.all_pairs_shortest_path_length(graph):
        for b, length in lengths.items():
            d[a, b] = min(length, cfg.farthest)
    return d


def collate(molecules):
    longest = max(len(atoms) for atoms, _, _ in molecules)
    x = torch.zeros(len(molecules), longest, dtype=torch.long)
    d = torch.full((len(molecules), longest, longest), cfg.farthest + 1)
    for i, (atoms, bonds, _) in enumerate(molecules):
        n = len(atoms)
        x[i, :n] = torch.from_numpy(atoms)
        d[i, :n, :n] = torch.from_numpy(distances(n, bonds))
    return x, d, torch.tensor([y for _, _, y in molecules])


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, bias):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=bias, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class GraphTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.atom, self.bias = nn.Embedding(12, cfg.width), nn.Embedding(cfg.farthest + 2, 4)
        self.blocks = nn.ModuleList(Block(cfg.width) for _ in range(cfg.layers))
        self.out = nn.Linear(cfg.width, 1)

    def forward(self, atoms, d):
        x, bias = self.atom(atoms), self.bias(d).permute(0, 3, 1, 2).flatten(0, 1)
        for block in self.blocks:
            x = block(x, bias)
        return self.out(x.mean(1)).squeeze(1)


torch.manual_seed(0)
loader = DataLoader(Molecules(cfg.molecules), batch_size=cfg.batch, shuffle=True, collate_fn=collate)
model = GraphTransformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
start = time.perf_counter()
for epoch in range(cfg.epochs):
    losses = []
    for atoms, d, y in loader:
        loss = nn.functional.mse_loss(model(atoms, d), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    print(f"epoch {epoch}: {torch.stack(losses).mean():.4f}")
print(f"training took {time.perf_counter() - start:.2f} s")
