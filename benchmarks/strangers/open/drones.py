"""Soft actor-critic that keeps planar drones over a moving platform: 32 of them in wind, each a simulation in NumPy."""

import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

DRONES, BATCH, STEPS = 32, 256, 520


class Sky:
    """Position, speed, tilt and its rate, the platform's offset and speed; two rotors; gusts are coloured noise."""

    def __init__(self, n, seed):
        self.rng, self.n = np.random.default_rng(seed), n
        self.state, self.gust, self.age = np.zeros((n, 8)), np.zeros((n, 2)), np.zeros(n)
        self.reset(np.ones(n, bool))

    def reset(self, which):
        self.state[which] = self.rng.normal(0, [1, 1, 0.3, 0.3, 0.1, 0.1, 0.5, 0.3], (which.sum(), 8))
        self.age[which] = self.rng.integers(0, 50, which.sum())

    def step(self, action, dt=0.05):
        s = self.state
        for _ in range(2):
            self.gust += 0.1 * (self.rng.normal(0, 1, (self.n, 2)) - self.gust)
            thrust = 9.81 * (1 + 0.5 * action.mean(1))
            force = np.stack([-np.sin(s[:, 4]) * thrust, np.cos(s[:, 4]) * thrust - 9.81], 1)
            drag = 0.2 * s[:, 2:4] * np.linalg.norm(s[:, 2:4], axis=1, keepdims=True)
            s[:, 2:4] += dt / 2 * (force - drag + self.gust)
            s[:, 5] += dt / 2 * (6 * (action[:, 1] - action[:, 0]) - 0.5 * s[:, 5])
            s[:, :2] += dt / 2 * s[:, 2:4]
            s[:, 4] += dt / 2 * s[:, 5]
            s[:, 6] += dt / 2 * s[:, 7]
            s[:, 7] -= dt / 2 * s[:, 6]
        self.age += 1
        off = np.hypot(s[:, 0] - s[:, 6], s[:, 1])
        crashed = (off > 5) | (np.abs(s[:, 4]) > 1.5)
        reward = 1 / (1 + off) - 0.05 * np.square(action).sum(1) - 5.0 * crashed
        following = s.copy()
        self.reset(crashed | (self.age > 200))
        return following, reward, crashed


def mlp(*sizes):
    layers = [part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def sample(actor, state):
    mean, spread = actor(state).chunk(2, -1)
    normal = torch.distributions.Normal(mean, spread.clamp(-5, 2).exp())
    raw = normal.rsample()
    action = raw.tanh()
    return action, (normal.log_prob(raw) - torch.log(1 - action**2 + 1e-6)).sum(-1)


torch.manual_seed(105)
sky = Sky(DRONES, 4)
actor, critics = mlp(8, 256, 256, 4), nn.ModuleList(mlp(10, 256, 256, 1) for _ in range(2))
targets = nn.ModuleList(mlp(10, 256, 256, 1) for _ in range(2))
targets.load_state_dict(critics.state_dict())
temperature = torch.zeros((), requires_grad=True)
actor_optimizer = torch.optim.Adam(actor.parameters(), 3e-4)
critic_optimizer = torch.optim.Adam(critics.parameters(), 3e-4)
temperature_optimizer = torch.optim.Adam([temperature], 3e-4)
memory = torch.zeros(STEPS * DRONES, 8 + 2 + 8 + 2)
filled, total = 0, 0.0
begin = time.perf_counter()
for step in range(STEPS):
    state = torch.from_numpy(sky.state.astype(np.float32))
    with torch.no_grad():
        action = sample(actor, state)[0]
    following, reward, crashed = sky.step(action.numpy())
    outcome = np.concatenate([following, reward[:, None], crashed[:, None]], 1).astype(np.float32)
    memory[filled : filled + DRONES] = torch.cat([state, action, torch.from_numpy(outcome)], 1)
    filled, total = filled + DRONES, total + reward.mean()
    for _ in range(2):
        s, a, s2, r, done = memory[torch.randint(0, filled, (BATCH,))].split([8, 2, 8, 1, 1], 1)
        with torch.no_grad():
            a2, log_p = sample(actor, s2)
            q2 = torch.min(*(q(torch.cat([s2, a2], 1)) for q in targets)) - temperature.exp() * log_p[:, None]
            goal = r + 0.98 * (1 - done) * q2
        critic_loss = sum(F.mse_loss(q(torch.cat([s, a], 1)), goal) for q in critics)
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        a, log_p = sample(actor, s)
        actor_loss = (temperature.exp().detach() * log_p[:, None] - torch.min(*(q(torch.cat([s, a], 1)) for q in critics))).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        temperature_optimizer.zero_grad()
        (-temperature * (log_p.detach() - 2).mean()).backward()
        temperature_optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(targets.parameters()), list(critics.parameters()), 0.01)
    if step % 100 == 99:
        print(f"step {step + 1}: reward {total / 100:.3f}", flush=True)
        total = 0.0
print(f"training took {time.perf_counter() - begin:.2f} s")
