"""REINFORCE on a cart and pole, with a simulation in numpy."""

import math
import os
import time

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

ENVS = 32 if os.environ.get("REPAIRED") == "1" else 1
ROLLOUT = 64
TOTAL = 32 * ROLLOUT * 14
GAMMA = 0.99


class CartPoles:
    """Simulates `n` poles at once."""

    def __init__(self, n, seed=0):
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.uniform(-0.05, 0.05, (n, 4))

    def step(self, actions):
        x, v, theta, omega = self.state.T
        force = np.where(actions == 1, 10.0, -10.0)
        cos, sin = np.cos(theta), np.sin(theta)
        temp = (force + 0.05 * omega**2 * sin) / 1.1
        acc_theta = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        acc = temp - 0.05 * acc_theta * cos / 1.1
        self.state = np.stack([x + 0.02 * v, v + 0.02 * acc, theta + 0.02 * omega, omega + 0.02 * acc_theta], 1)
        done = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 12 * 2 * math.pi / 360)
        self.state[done] = self.rng.uniform(-0.05, 0.05, (done.sum(), 4))
        return self.state.astype(np.float32), np.ones(len(done), np.float32), done


policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)


def main():
    envs = CartPoles(ENVS)
    obs = envs.state.astype(np.float32)
    frames, update, ended = 0, 0, 0
    start = time.time()
    while frames < TOTAL:
        log_probs, rewards, dones = [], [], []
        for _ in range(ROLLOUT):
            dist = Categorical(logits=policy(torch.from_numpy(obs)))
            action = dist.sample()
            log_probs.append(dist.log_prob(action))
            obs, reward, done = envs.step(action.numpy())
            rewards.append(torch.from_numpy(reward))
            dones.append(torch.from_numpy(done))
            ended += int(done.sum())
            frames += ENVS
        value = torch.zeros(ENVS)
        returns = []
        for reward, done in zip(reversed(rewards), reversed(dones)):
            value = reward + GAMMA * value * ~done
            returns.insert(0, value)
        ret = torch.stack(returns)
        ret = (ret - ret.mean()) / (ret.std() + 1e-6)
        loss = -(torch.stack(log_probs) * ret).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update += 1
        if update % 50 == 0:
            print(f"update {update} frames {frames} mean length {frames / max(1, ended):.1f}")
    print(f"training took {time.time() - start:.2f} s")


main()
