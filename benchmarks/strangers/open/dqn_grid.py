"""Deep Q-learning on a grid with traps, with replay memory and a target network."""

import os
import random
import time
from collections import deque

import numpy as np
import torch
from torch import nn

N, BATCH, STEPS, CAPACITY = 16, 256, 300, 20000
MOVES = [(0, 1), (1, 0), (0, -1), (-1, 0)]


class Grid:
    def __init__(self):
        self.traps = {(random.randrange(1, N), random.randrange(1, N)) for _ in range(20)} - {(N - 1, N - 1)}
        self.at = (0, 0)

    def picture(self):
        board = np.zeros((2, N, N), np.float32)
        board[0][self.at] = 1
        for trap in self.traps:
            board[1][trap] = 1
        return board

    def step(self, action):
        dx, dy = MOVES[action]
        self.at = (min(N - 1, max(0, self.at[0] + dx)), min(N - 1, max(0, self.at[1] + dy)))
        done = self.at in self.traps or self.at == (N - 1, N - 1)
        reward = 1.0 if self.at == (N - 1, N - 1) else -1.0 if done else -0.01
        if done:
            self.at = (0, 0)
        return self.picture(), reward, done


class ListMemory:
    def __init__(self):
        self.items = deque(maxlen=CAPACITY)

    def push(self, state, action, reward, after, done):
        self.items.append((state.tolist(), action, reward, after.tolist(), done))

    def sample(self):
        states, actions, rewards, afters, dones = zip(*random.sample(self.items, BATCH))
        return (torch.tensor(states), torch.tensor(actions), torch.tensor(rewards), torch.tensor(afters),
                torch.tensor(dones))


class ArrayMemory:
    def __init__(self):
        self.states, self.afters = (torch.zeros(CAPACITY, 2, N, N) for _ in range(2))
        self.rest = torch.zeros(CAPACITY, 3)
        self.n = 0

    def push(self, state, action, reward, after, done):
        at = self.n % CAPACITY
        self.states[at], self.afters[at] = torch.from_numpy(state), torch.from_numpy(after)
        self.rest[at] = torch.tensor([action, reward, done])
        self.n += 1

    def sample(self):
        at = torch.randint(0, min(self.n, CAPACITY), (BATCH,))
        rest = self.rest[at]
        return self.states[at], rest[:, 0].long(), rest[:, 1], self.afters[at], rest[:, 2].bool()


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(2 * N * N, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))


online, target = network(), network()
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters(), 5e-4)
memory = ArrayMemory() if os.environ.get("REPAIRED") == "1" else ListMemory()
env = Grid()
state = env.picture()
for _ in range(1500):
    action = random.randrange(4)
    after, reward, done = env.step(action)
    memory.push(state, action, reward, after, done)
    state = after
began = time.time()
for step in range(STEPS):
    with torch.no_grad():
        action = random.randrange(4) if random.random() < 0.2 else int(online(torch.from_numpy(state)[None]).argmax())
    after, reward, done = env.step(action)
    memory.push(state, action, reward, after, done)
    state = after
    states, actions, rewards, afters, dones = memory.sample()
    with torch.no_grad():
        goal = rewards + 0.98 * target(afters).max(1).values * ~dones
    loss = nn.functional.smooth_l1_loss(online(states).gather(1, actions[:, None]).squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        target.load_state_dict(online.state_dict())
        print(f"step {step} loss {loss.item():.4f}")
print(f"training took {time.time() - began:.2f} s")
