"""Which field is a paper from? GraphSAGE on a citation graph, two hops, minibatches."""
import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

PAPERS, FIELDS, DIM, FANOUT = 12000, 20, 96, (10, 5)
ARRAYS = os.environ.get("REPAIRED") == "1"


def citation_graph(seed=0):
    rng = np.random.default_rng(seed)
    field = rng.integers(0, FIELDS, PAPERS)
    members = [np.flatnonzero(field == f) for f in range(FIELDS)]
    cites = []
    for v in range(PAPERS):
        same = rng.choice(members[field[v]], rng.integers(3, 12))
        cites.append(np.concatenate([same, rng.integers(0, PAPERS, 3)]).tolist())
    words = rng.normal(size=(PAPERS, DIM)).astype(np.float32)
    words[np.arange(PAPERS), field] += 0.7
    return cites, torch.from_numpy(words), torch.from_numpy(field)


class Sampler:
    def __init__(self, cites):
        self.cites = cites
        self.start = np.cumsum([0] + [len(c) for c in cites])
        self.flat = np.concatenate(cites)
        self.rng = np.random.default_rng(1)

    def one_hop(self, nodes, k):
        neighbours = []
        for v in nodes:
            neighbours.extend(random.choices(self.cites[v], k=k))
        return neighbours

    def one_hop_array(self, nodes, k):
        degree = self.start[nodes + 1] - self.start[nodes]
        pick = (self.rng.random((len(nodes), k)) * degree[:, None]).astype(np.int64)
        return self.flat[self.start[nodes][:, None] + pick].ravel()

    def rows(self, features, nodes):
        return torch.stack([features[v] for v in nodes])

    def sample(self, features, seeds):
        if ARRAYS:
            seeds = seeds.numpy()
            near = self.one_hop_array(seeds, FANOUT[0])
            far = self.one_hop_array(near, FANOUT[1])
            return [features[torch.from_numpy(n)] for n in (seeds, near, far)]
        seeds = seeds.tolist()
        near = self.one_hop(seeds, FANOUT[0])
        far = self.one_hop(near, FANOUT[1])
        return [self.rows(features, n) for n in (seeds, near, far)]


class Sage(nn.Module):
    def __init__(self, hidden=192):
        super().__init__()
        self.own1, self.near1 = nn.Linear(DIM, hidden), nn.Linear(DIM, hidden)
        self.own2, self.near2 = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, FIELDS)

    def forward(self, seeds, near, far):
        mean_near = near.view(len(seeds), FANOUT[0], -1).mean(1)
        mean_far = far.view(len(near), FANOUT[1], -1).mean(1)
        seeds = F.relu(self.own1(seeds) + self.near1(mean_near))
        near = F.relu(self.own1(near) + self.near1(mean_far))
        return self.out(F.relu(self.own2(seeds) + self.near2(near.view(len(seeds), FANOUT[0], -1).mean(1))))


random.seed(0)
torch.manual_seed(0)
cites, features, field = citation_graph()
sampler = Sampler(cites)
net = Sage()
opt = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=5e-4)
t0 = time.time()
for epoch in range(8):
    right = torch.zeros(())
    for seeds in torch.randperm(PAPERS).split(256):
        logits = net(*sampler.sample(features, seeds))
        loss = F.cross_entropy(logits, field[seeds])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        right += (logits.argmax(1) == field[seeds]).sum()
    print(f"epoch {epoch}: accuracy {right.item() / PAPERS:.3f}")
print(f"training took {time.time() - t0:.2f} s")
