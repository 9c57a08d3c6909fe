"""Learn the value of arithmetic formulas from their syntax trees: a Tree-LSTM as in Tai et al. 2015."""

import os
import random
import time

import torch
from torch import nn

OPERATORS = {"+": 0, "-": 1, "*": 2, "max": 3}
random.seed(12)
torch.manual_seed(12)


class Node:
    def __init__(self, kind, left=None, right=None, value=0.0):
        self.kind, self.left, self.right, self.value = kind, left, right, value
        self.height = 0 if left is None else 1 + max(left.height, right.height)


def formula(depth):
    if depth == 0 or random.random() < 0.1:
        return Node("number", value=random.uniform(-1, 1))
    kind = random.choice(list(OPERATORS))
    left, right = formula(depth - 1), formula(depth - 1)
    a, b = left.value, right.value
    return Node(kind, left, right, {"+": (a + b) / 2, "-": (a - b) / 2, "*": a * b, "max": max(a, b)}[kind])


class TreeLSTM(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.number = nn.Linear(1, 2 * size)
        self.operator = nn.Embedding(len(OPERATORS), size)
        self.gates = nn.Linear(3 * size, 5 * size)
        self.out = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 1))

    def combine(self, operator, left, right):
        (h1, c1), (h2, c2) = left, right
        i, f1, f2, o, u = self.gates(torch.cat([operator, h1, h2], -1)).chunk(5, -1)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f1) * c1 + torch.sigmoid(f2) * c2
        return torch.sigmoid(o) * torch.tanh(c), c

    def encode(self, node):
        if node.left is None:
            return self.number(torch.tensor([[node.value]])).tanh().chunk(2, -1)
        operator = self.operator(torch.tensor([OPERATORS[node.kind]]))
        return self.combine(operator, self.encode(node.left), self.encode(node.right))

    def encode_levels(self, trees):
        """All nodes of the same height at once, over the whole batch."""
        levels, stack = {}, list(trees)
        while stack:
            node = stack.pop()
            levels.setdefault(node.height, []).append(node)
            if node.left is not None:
                stack += [node.left, node.right]
        place, height = {}, 0
        leaves = levels[0]
        h, c = self.number(torch.tensor([[leaf.value] for leaf in leaves])).tanh().chunk(2, -1)
        place.update({id(leaf): i for i, leaf in enumerate(leaves)})
        while (height := height + 1) in levels:
            nodes = levels[height]
            left = torch.tensor([place[id(node.left)] for node in nodes])
            right = torch.tensor([place[id(node.right)] for node in nodes])
            operator = self.operator(torch.tensor([OPERATORS[node.kind] for node in nodes]))
            new_h, new_c = self.combine(operator, (h[left], c[left]), (h[right], c[right]))
            place.update({id(node): len(h) + i for i, node in enumerate(nodes)})
            h, c = torch.cat([h, new_h]), torch.cat([c, new_c])
        return h[[place[id(tree)] for tree in trees]]

    def forward(self, trees):
        if os.environ.get("REPAIRED") == "1":
            return self.out(self.encode_levels(trees)).squeeze(-1)
        return self.out(torch.cat([self.encode(tree)[0] for tree in trees])).squeeze(-1)


data = [formula(5) for _ in range(4000)]
net = TreeLSTM(288)
opt = torch.optim.Adam(net.parameters(), 1e-3)
since = time.time()
running = None
for step in range(160):
    batch = random.sample(data, 5)
    wanted = torch.tensor([tree.value for tree in batch])
    loss = nn.functional.mse_loss(net(batch), wanted)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    running = loss.detach() if running is None else 0.95 * running + 0.05 * loss.detach()
    if step % 10 == 9:
        print(f"step {step + 1}, error {running.item():.4f}", flush=True)
print(f"training took {time.time() - since:.2f} s")
