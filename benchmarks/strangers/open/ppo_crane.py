"""PPO for a crane that must bring a swinging load to a place and keep it still. Many cranes at once, simulated in tensors."""

import time
from typing import NamedTuple

import torch
from torch import nn
from torch.distributions import Normal


class Config(NamedTuple):
    cranes: int = 256
    horizon: int = 32
    updates: int = 36
    epochs: int = 4
    minibatch: int = 1024
    gamma: float = 0.98
    lam: float = 0.95
    clip: float = 0.2
    lr: float = 3e-4


class Cranes:
    """State: place and speed of the trolley, angle and turn of the rope, length of the rope, the place to go to."""

    def __init__(self, n):
        self.n, self.age = n, torch.randint(0, 100, (n,))
        self.state = self.new(n)

    @staticmethod
    def new(n):
        state = torch.zeros(n, 6)
        state[:, 0].uniform_(-2, 2)
        state[:, 2].uniform_(-0.3, 0.3)
        state[:, 4].uniform_(0.5, 2)
        state[:, 5].uniform_(-2, 2)
        return state

    def step(self, force, dt=0.05):
        x, v, angle, turn, rope, goal = self.state.unbind(1)
        a = 4 * force[:, 0].clamp(-1, 1) - 0.3 * v
        v, turn = v + dt * a, turn + dt * (-9.81 * angle.sin() - a * angle.cos()) / rope - 0.05 * dt * turn
        x, angle = x + dt * v, angle + dt * turn
        self.state = torch.stack([x, v, angle, turn, rope, goal], 1)
        load = x + rope * angle.sin()
        reward = torch.exp(-(load - goal).square()) - 0.02 * turn.abs() - 0.01 * force[:, 0].square()
        self.age += 1
        done = (self.age >= 100) | (x.abs() > 4)
        self.state = torch.where(done[:, None], self.new(self.n), self.state)
        self.age = self.age.masked_fill(done, 0)
        return reward, done.float()


def mlp(out, width=256):
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, out))


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = mlp(1), mlp(1)
        self.log_std = nn.Parameter(torch.full((1,), -0.5))

    def forward(self, state):
        return Normal(self.actor(state), self.log_std.exp()), self.critic(state).squeeze(-1)


@torch.no_grad()
def rollout(cranes, agent, cfg):
    shape = cfg.horizon, cfg.cranes
    states, actions = torch.empty(*shape, 6), torch.empty(*shape, 1)
    rewards, dones, log_probs = torch.empty(shape), torch.empty(shape), torch.empty(shape)
    for t in range(cfg.horizon):
        states[t] = cranes.state
        policy = Normal(agent.actor(cranes.state), agent.log_std.exp())
        actions[t] = policy.sample()
        log_probs[t] = policy.log_prob(actions[t]).sum(1)
        rewards[t], dones[t] = cranes.step(actions[t])
    values = agent.critic(torch.cat([states, cranes.state[None]])).squeeze(-1)
    advantage, ahead = torch.empty(shape), torch.zeros(cfg.cranes)
    for t in reversed(range(cfg.horizon)):
        delta = rewards[t] + cfg.gamma * values[t + 1] * (1 - dones[t]) - values[t]
        ahead = delta + cfg.gamma * cfg.lam * (1 - dones[t]) * ahead
        advantage[t] = ahead
    returns = advantage + values[:-1]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    flat = [part.flatten(0, 1) for part in (states, actions, log_probs, advantage, returns)]
    return flat, rewards.mean()


def update(agent, optimizer, batch, cfg):
    states, actions, old, advantage, returns = batch
    policy, value = agent(states)
    ratio = (policy.log_prob(actions).sum(1) - old).exp()
    surrogate = torch.min(ratio * advantage, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * advantage).mean()
    loss = 0.5 * (value - returns).square().mean() - surrogate - 1e-3 * policy.entropy().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()


def main(cfg=Config()):
    torch.manual_seed(55)
    cranes, agent = Cranes(cfg.cranes), ActorCritic()
    optimizer = torch.optim.Adam(agent.parameters(), lr=cfg.lr, eps=1e-5)
    tic = time.time()
    for number in range(cfg.updates):
        flat, reward = rollout(cranes, agent, cfg)
        for _ in range(cfg.epochs):
            for rows in torch.randperm(cfg.horizon * cfg.cranes).split(cfg.minibatch):
                update(agent, optimizer, [part[rows] for part in flat], cfg)
        if number % 5 == 4:
            print(f"update {number + 1}: mean reward {reward:.3f}", flush=True)
    torch.save(agent.state_dict(), "crane.pt")
    print(f"training took {time.time() - tic:.2f} s")


main()
