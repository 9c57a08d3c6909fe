"""Sail to windward: thirty-two boats at once, PPO with a Gaussian policy for rudder and sheet."""

import math
import os
import time
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

HP = SimpleNamespace(boats=32, horizon=64, rounds=130, epochs=3, minibatch=512, gamma=0.99, lam=0.95, clip=0.2)


class Regatta:
    """State: place, heading, speed, wind; the reward is what is won to windward."""

    def __init__(self, boats, seed=0):
        self.rng, self.boats = np.random.default_rng(seed), boats
        self.state = self.fresh(boats)

    def fresh(self, n):
        s = self.rng.normal(size=(n, 6)) * [1, 1, 1.5, 0.1, 0.3, 0.1]
        return s.astype(np.float32)

    def step(self, action):
        x, y, heading, speed, wind, turn = self.state.T
        wind = wind + 0.03 * self.rng.normal(size=self.boats)
        turn = 0.8 * turn + 0.1 * np.clip(action[:, 0], -1, 1)
        heading = (heading + turn + math.pi) % (2 * math.pi) - math.pi
        angle = np.abs((heading - wind + math.pi) % (2 * math.pi) - math.pi)
        trim = 1 - np.abs(np.clip(action[:, 1], -1, 1) - (angle / math.pi * 2 - 1))
        drive = np.clip(np.sin(angle) - 0.45, 0, 1) * trim
        speed = 0.9 * speed + 0.1 * drive
        gain = speed * np.cos(heading)
        self.state = np.stack([x + speed * np.sin(heading), y + gain, heading, speed, wind, turn], 1).astype(np.float32)
        lost = (np.abs(self.state[:, 0]) > 12) | (self.rng.random(self.boats) < 0.005)
        self.state[lost] = self.fresh(int(lost.sum()))
        return self.state, gain.astype(np.float32), lost.astype(np.float32)


class Helmsman(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.mean, self.value = nn.Linear(width, 2), nn.Linear(width, 1)
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def forward(self, state):
        h = self.body(state)
        return torch.distributions.Normal(self.mean(h), self.log_std.exp()), self.value(h).squeeze(-1)


def advantages(reward, value, lost, last):
    """Generalized advantage estimation, boat by boat."""
    result = torch.zeros_like(reward)
    for boat in range(reward.shape[1]):
        running, after = torch.tensor(0.0), last[boat]
        for t in reversed(range(reward.shape[0])):
            alive = 1 - lost[t, boat]
            delta = reward[t, boat] + HP.gamma * after * alive - value[t, boat]
            running = delta + HP.gamma * HP.lam * alive * running
            result[t, boat] = running
            after = value[t, boat]
    return result


def advantages_of_all(reward, value, lost, last):
    reward, value, alive, after = reward.numpy(), value.numpy(), 1 - lost.numpy(), last.numpy()
    result, running = np.zeros_like(reward), np.zeros_like(after)
    for t in reversed(range(len(reward))):
        running = reward[t] + HP.gamma * after * alive[t] - value[t] + HP.gamma * HP.lam * alive[t] * running
        result[t], after = running, value[t]
    return torch.from_numpy(result)


def main():
    torch.manual_seed(0)
    regatta, helmsman = Regatta(HP.boats), Helmsman()
    optimizer = torch.optim.Adam(helmsman.parameters(), 3e-4, eps=1e-5)
    estimate = advantages_of_all if os.environ.get("REPAIRED") == "1" else advantages
    begin = time.time()
    for round_ in range(HP.rounds):
        seen = []
        for _ in range(HP.horizon):
            state = torch.from_numpy(regatta.state)
            with torch.no_grad():
                policy, value = helmsman(state)
                action = policy.sample()
            _, reward, lost = regatta.step(action.numpy())
            seen.append((state, action, policy.log_prob(action).sum(-1), value, reward, lost))
        state, action, old, value = (torch.stack([s[k] for s in seen]) for k in range(4))
        reward, lost = (torch.from_numpy(np.stack([s[k] for s in seen])) for k in (4, 5))
        with torch.no_grad():
            last = helmsman(torch.from_numpy(regatta.state))[1]
            adv = estimate(reward, value, lost, last)
        goal, adv = (adv + value).flatten(), ((adv - adv.mean()) / (adv.std() + 1e-8)).flatten()
        state, action, old = state.flatten(0, 1), action.flatten(0, 1), old.flatten().detach()
        for _ in range(HP.epochs):
            for rows in torch.randperm(len(adv)).split(HP.minibatch):
                policy, value = helmsman(state[rows])
                ratio = (policy.log_prob(action[rows]).sum(-1) - old[rows]).exp()
                gain = torch.min(ratio * adv[rows], ratio.clamp(1 - HP.clip, 1 + HP.clip) * adv[rows]).mean()
                loss = 0.5 * (value - goal[rows]).pow(2).mean() - gain - 1e-3 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(helmsman.parameters(), 0.5)
                optimizer.step()
        if round_ % 25 == 24:
            print(f"round {round_ + 1}: reward {reward.mean():.4f}", flush=True)
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
