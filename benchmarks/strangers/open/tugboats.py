#!/usr/bin/env python
"""Two tugs bring a tanker to its berth: TD3 on a large memory of logged manoeuvres, to which new ones are added."""

import argparse
import copy
import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

REPAIRED = os.environ.get("REPAIRED") == "1"


class Harbour:
    """Many tankers at once: place, heading, speeds, and a current that changes slowly."""

    def __init__(self, count, seed):
        self.rng, self.count = np.random.default_rng(seed), count
        self.reset()

    def reset(self):
        self.s = self.rng.normal(size=(self.count, 9)).astype(np.float32)

    def step(self, a):
        s, dt = self.s, 0.1
        force = np.stack([a[:, 0] * np.cos(s[:, 2]), a[:, 0] * np.sin(s[:, 2]), a[:, 1] - a[:, 0] * 0.1], 1)
        speed = 0.97 * s[:, 3:6] + dt * (force + 0.3 * s[:, 6:9])
        drift = 0.99 * s[:, 6:9] + 0.05 * self.rng.normal(size=(self.count, 3))
        self.s = np.concatenate([s[:, :3] + dt * speed, speed, drift], 1).astype(np.float32)
        return self.s, -(self.s[:, :3] ** 2).sum(1) - 0.1 * (a**2).sum(1)


class Memory:
    def __init__(self, capacity):
        self.state, self.after = np.zeros((2, capacity, 9), np.float32)
        self.action, self.reward = np.zeros((capacity, 2), np.float32), np.zeros(capacity, np.float32)
        self.at, self.full, self.capacity = 0, 0, capacity

    def add(self, state, action, reward, after):
        rows = (self.at + np.arange(len(state))) % self.capacity
        self.state[rows], self.action[rows], self.reward[rows], self.after[rows] = state, action, reward, after
        self.at = (self.at + len(state)) % self.capacity
        self.full = min(self.full + len(state), self.capacity)

    def sample(self, count):
        rows = (
            np.random.randint(self.full, size=count) if REPAIRED else np.random.choice(self.full, count, replace=False)
        )
        return [torch.from_numpy(part[rows]) for part in (self.state, self.action, self.reward, self.after)]


def mlp(*sizes, last=nn.Identity):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1], last())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=360)
    parser.add_argument("--memory", type=int, default=700_000)
    parser.add_argument("--save-every", type=int, default=40)
    args = parser.parse_args()
    np.random.seed(8)
    torch.manual_seed(8)
    memory, harbour = Memory(args.memory), Harbour(2000, 1)
    for hour in range(args.memory // 2000):
        if hour % 50 == 0:
            harbour.reset()
        state, action = harbour.s, np.tanh(np.random.randn(2000, 2)).astype(np.float32)
        after, reward = harbour.step(action)
        memory.add(state, action, reward, after)
    actor = mlp(9, 256, 256, 2, last=nn.Tanh)
    critics = nn.ModuleList(mlp(11, 256, 256, 1) for _ in range(2))
    slow_actor, slow_critics = copy.deepcopy(actor), copy.deepcopy(critics)
    of_actor, of_critics = torch.optim.Adam(actor.parameters(), 3e-4), torch.optim.Adam(critics.parameters(), 3e-4)
    harbour = Harbour(32, 2)
    begin = time.time()
    for update in range(1, args.updates + 1):
        with torch.no_grad():
            state = harbour.s
            action = (actor(torch.from_numpy(state)) + 0.1 * torch.randn(32, 2)).clamp(-1, 1).numpy()
        after, reward = harbour.step(action)
        memory.add(state, action, reward, after)
        state, action, reward, after = memory.sample(512)
        with torch.no_grad():
            then = torch.cat([after, (slow_actor(after) + 0.2 * torch.randn(512, 2)).clamp(-1, 1)], 1)
            goal = reward + 0.98 * torch.min(*(c(then).squeeze(1) for c in slow_critics))
        loss = sum(mse_loss(c(torch.cat([state, action], 1)).squeeze(1), goal) for c in critics)
        of_critics.zero_grad()
        loss.backward()
        of_critics.step()
        if update % 2 == 0:
            of_actor.zero_grad()
            (-critics[0](torch.cat([state, actor(state)], 1)).mean()).backward()
            of_actor.step()
            with torch.no_grad():
                for slow, fast in ((slow_actor, actor), (slow_critics, critics)):
                    torch._foreach_lerp_(list(slow.parameters()), list(fast.parameters()), 0.01)
        if update % args.save_every == 0:
            state = {"actor": actor.state_dict(), "critics": critics.state_dict(), "update": update}
            if not REPAIRED or update == args.updates:
                state["memory"] = vars(memory)
            torch.save(state, "tugs.pt")
        if update % 100 == 0:
            print(f"update {update}: loss {loss.item():.2f} reward {reward.mean():.2f}", flush=True)
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
