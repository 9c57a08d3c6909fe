"""Deep Q-learning in a maze, with a target network and a replay memory."""

import collections
import copy
import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SIZE, GOAL, STEPS, BATCH = 24, (22, 22), 3500, 64
rng = np.random.default_rng(4)
walls = rng.random((SIZE, SIZE)) < 0.18
walls[1, 1] = walls[GOAL] = False
MOVES = [(0, 1), (1, 0), (0, -1), (-1, 0)]


def view(position):
    """Return what the walker sees: how far it can look in each of 16 directions, and where the goal is."""
    seen = []
    for angle in np.linspace(0, 2 * np.pi, 16, endpoint=False):
        y, x, far = position[0] + 0.5, position[1] + 0.5, 0.0
        while far < SIZE and 0 <= y < SIZE and 0 <= x < SIZE and not walls[int(y), int(x)]:
            y, x, far = y + 0.25 * np.sin(angle), x + 0.25 * np.cos(angle), far + 0.25
        seen.append(far / SIZE)
    return np.array([*seen, (GOAL[0] - position[0]) / SIZE, (GOAL[1] - position[1]) / SIZE], np.float32)


if os.environ.get("REPAIRED") == "1":
    VIEWS = {(y, x): view((y, x)) for y in range(SIZE) for x in range(SIZE)}
    view = VIEWS.__getitem__

q = nn.Sequential(nn.Linear(18, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
target = copy.deepcopy(q)
optimizer = torch.optim.Adam(q.parameters(), lr=5e-4)
memory = collections.deque(maxlen=20_000)
position, found = (1, 1), 0
state = view(position)
start = time.time()
for step in range(STEPS):
    if random.random() < 0.1:
        action = random.randrange(4)
    else:
        with torch.no_grad():
            action = int(q(torch.from_numpy(state)[None]).argmax())
    y, x = position[0] + MOVES[action][0], position[1] + MOVES[action][1]
    if 0 <= y < SIZE and 0 <= x < SIZE and not walls[y, x]:
        position = (y, x)
    done = position == GOAL or random.random() < 0.005
    found += position == GOAL
    after = view(position)
    memory.append((state, action, float(position == GOAL) - 0.01, after, done))
    if done:
        position = (1, 1)
        after = view(position)
    state = after
    if len(memory) < BATCH:
        continue
    s, a, r, s2, d = zip(*random.sample(memory, BATCH))
    with torch.no_grad():
        best = target(torch.from_numpy(np.stack(s2))).max(1).values
    goal = torch.tensor(r) + 0.98 * best * (1 - torch.tensor(d, dtype=torch.float32))
    value = q(torch.from_numpy(np.stack(s))).gather(1, torch.tensor(a)[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(value, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 250 == 0:
        target.load_state_dict(q.state_dict())
        print(f"step {step}: reached the goal {found} times, loss {loss.item():.4f}")
print(f"training took {time.time() - start:.2f} s")
