"""Leaks in the water pipes of a city: districts as graphs, Laplacian positions of the junctions, a gated graph network."""

import csv
import os
import time
from pathlib import Path

import networkx as nx
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

REPAIRED = os.environ.get("REPAIRED") == "1"
POSITIONS = 8


def district(rng):
    """A street grid with some pipes missing, pressures, and a leak at one junction."""
    graph = nx.grid_2d_graph(int(rng.integers(7, 11)), int(rng.integers(7, 11)))
    pipes = list(graph.edges)
    for i in rng.choice(len(pipes), len(pipes) // 6, replace=False):
        graph.remove_edge(*pipes[i])
        if not nx.is_connected(graph):
            graph.add_edge(*pipes[i])
    graph = nx.convert_node_labels_to_integers(graph)
    leak = int(rng.integers(len(graph)))
    away = nx.single_source_shortest_path_length(graph, leak)
    pressure = [1 - 0.5 * np.exp(-away[node] / 2) + rng.normal(0, 0.05) for node in graph]
    return graph, np.array(pressure, "float32"), leak


class Districts(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.items = [district(rng) for _ in range(count)]
        self.made = [self.make(i) for i in range(count)] if REPAIRED else None

    def make(self, i):
        graph, pressure, leak = self.items[i]
        laplacian = nx.normalized_laplacian_matrix(graph).toarray()
        _, vectors = np.linalg.eigh(laplacian)
        between = nx.betweenness_centrality(graph, k=16, seed=0)
        x = np.column_stack([pressure, list(between.values()), vectors[:, 1 : POSITIONS + 1]])
        edges = np.array(graph.edges).T
        return torch.tensor(x, dtype=torch.float32), torch.from_numpy(np.hstack([edges, edges[::-1]])), leak

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.made[i] if self.made else self.make(i)


def merge(items):
    sizes = torch.tensor([len(x) for x, _, _ in items])
    starts = sizes.cumsum(0) - sizes
    edges = torch.cat([e + s for (_, e, _), s in zip(items, starts)], 1)
    part = torch.repeat_interleave(torch.arange(len(items)), sizes)
    return torch.cat([x for x, _, _ in items]), edges, part, torch.tensor([leak for _, _, leak in items]) + starts


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.update = nn.GRUCell(width, width)

    def forward(self, h, edges):
        sent = self.message(torch.cat([h[edges[0]], h[edges[1]]], 1))
        return self.update(torch.zeros_like(h).index_add(0, edges[1], sent), h)


class LeakFinder(nn.Module):
    def __init__(self, width=64, depth=4):
        super().__init__()
        self.first = nn.Linear(2 + POSITIONS, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.score = nn.Linear(width, 1)

    def forward(self, x, edges):
        h = self.first(x).relu()
        for layer in self.layers: h = layer(h, edges)
        return self.score(h).squeeze(1)


def loss_of(scores, part, leak, n):
    top = torch.full((n,), -1e9).scatter_reduce(0, part, scores.detach(), "amax")
    total = torch.zeros(n).index_add(0, part, (scores - top[part]).exp())
    return (total.log() + top - scores[leak]).mean()


def write_down(file, step, model):
    row = [step]
    for parameter in model.parameters():
        for values in (parameter.detach(), parameter.grad):
            row += np.percentile(values.numpy(), range(0, 101, 5)).round(6).tolist()
            row += np.histogram(values.numpy(), bins=64)[0].tolist()
    csv.writer(file).writerow(row)
    file.flush()


torch.manual_seed(12)
loader = DataLoader(Districts(300, 3), batch_size=12, shuffle=True, collate_fn=merge)
model = LeakFinder()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
t0, step = time.time(), 0
with Path("weights.csv").open("w", newline="") as file:
    for epoch in range(5):
        for x, edges, part, leak in loader:
            step += 1
            loss = loss_of(model(x, edges), part, leak, len(leak))
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % (50 if REPAIRED else 1) == 0:
                write_down(file, step, model)
        print("epoch", epoch, "loss", round(loss.item(), 3), flush=True)
print("training took %.2f s" % (time.time() - t0))
