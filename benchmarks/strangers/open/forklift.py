"""A forklift learns to fetch pallets in a warehouse: double DQN with prioritized replay, many warehouses side by side."""

import os
import time
from copy import deepcopy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SIDE, WAREHOUSES, CAPACITY, BATCH = 9, 16, 2**15, 512
REPAIRED = os.environ.get("REPAIRED") == "1"
MOVES = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])


class Warehouses:
    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.shelves = np.zeros((SIDE, SIDE), bool)
        self.shelves[2:7:2, 1:8] = True
        self.shelves[2:7:2, 4] = False
        self.at, self.pallet = self.rng.integers(0, 2, (n, 2)), self.rng.integers(7, SIDE, (n, 2))
        self.loaded, self.age = np.zeros(n, bool), np.zeros(n, int)

    def seen(self):
        goal = np.where(self.loaded[:, None], 0, self.pallet)
        near = [self.shelves[tuple(np.clip(self.at + m, 0, SIDE - 1).T)] for m in MOVES]
        return np.column_stack([self.at / SIDE, goal / SIDE, (goal - self.at) / SIDE, self.loaded, *near]).astype("f4")

    def drive(self, action):
        to = np.clip(self.at + MOVES[action], 0, SIDE - 1)
        free = ~self.shelves[tuple(to.T)]
        self.at = np.where(free[:, None], to, self.at)
        self.age += 1
        picked, home = ~self.loaded & (self.at == self.pallet).all(1), self.loaded & (self.at == 0).all(1)
        self.loaded |= picked
        done = home | (self.age > 80)
        reward = (picked + 2 * home - 0.02).astype("f4")
        for i in np.flatnonzero(done):
            self.at[i], self.pallet[i] = self.rng.integers(0, 2, 2), self.rng.integers(7, SIDE, 2)
            self.loaded[i], self.age[i] = False, 0
        return reward, done.astype("f4")


class SumTree:
    # a node is the sum of its children
    def __init__(self, capacity):
        self.capacity, self.nodes = capacity, np.zeros(2 * capacity)

    def update(self, leaves, priorities):
        if REPAIRED:
            node = np.asarray(leaves) + self.capacity
            self.nodes[node] = priorities
            while (node := np.unique(node // 2))[0] > 0:
                self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1]
            return
        for leaf, priority in zip(leaves, priorities):
            node = leaf + self.capacity
            change = priority - self.nodes[node]
            while node > 0:
                self.nodes[node] += change
                node //= 2

    def sample(self, n, rng):
        points = (np.arange(n) + rng.random(n)) * self.nodes[1] / n
        if REPAIRED:
            node = np.ones(n, int)
            while node[0] < self.capacity:
                left = 2 * node
                right = points >= self.nodes[left]
                points = points - right * self.nodes[left]
                node = left + right
            return node - self.capacity
        found = []
        for point in points:
            node = 1
            while node < self.capacity:
                node *= 2
                if point >= self.nodes[node]:
                    point -= self.nodes[node]
                    node += 1
            found.append(node - self.capacity)
        return np.array(found)


rng, _ = np.random.default_rng(0), torch.manual_seed(0)
world, tree = Warehouses(WAREHOUSES, 1), SumTree(CAPACITY)
memory = [np.zeros((CAPACITY, *shape), kind) for shape, kind in (((11,), "f4"), ((), int), ((), "f4"), ((11,), "f4"), ((), "f4"))]
q = nn.Sequential(nn.Linear(11, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
target = deepcopy(q)
optimizer = torch.optim.Adam(q.parameters(), lr=5e-4)
written, rewards = 0, []
started = time.time()
for step in range(2100):
    state = world.seen()
    with torch.no_grad():
        action = q(torch.from_numpy(state)).argmax(1).numpy()
    action = np.where(rng.random(WAREHOUSES) < max(0.05, 1 - step / 800), rng.integers(0, 4, WAREHOUSES), action)
    reward, done = world.drive(action)
    places = np.arange(written, written + WAREHOUSES) % CAPACITY
    for column, values in zip(memory, (state, action, reward, world.seen(), done)):
        column[places] = values
    tree.update(places, np.ones(WAREHOUSES))
    written += WAREHOUSES
    rewards.append(reward.mean())
    rows = np.minimum(tree.sample(BATCH, rng), min(written, CAPACITY) - 1)
    s, a, r, s2, d = (torch.from_numpy(column[rows]) for column in memory)
    with torch.no_grad():
        best = r + 0.97 * (1 - d) * target(s2).gather(1, q(s2).argmax(1, keepdim=True)).squeeze(1)
    error = q(s).gather(1, a[:, None]).squeeze(1) - best
    optimizer.zero_grad()
    F.huber_loss(error, torch.zeros_like(error)).backward()
    optimizer.step()
    tree.update(rows, (error.detach().abs().numpy() + 0.01) ** 0.6)
    if step % 200 == 0:
        target.load_state_dict(q.state_dict())
        print(f"{step}: reward {np.mean(rewards[-200:]):.4f}", flush=True)
print(f"training took {time.time() - started:.2f} s")
