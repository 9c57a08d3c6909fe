"""PyTorch's REINFORCE: the policy acts step by step with gradients, and trains once an episode; no DataLoader."""

import counted
import torch
from torch import nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.dropout, self.affine2 = nn.Linear(4, 32), nn.Dropout(0.4), nn.Linear(32, 2)

    def forward(self, x):
        return torch.softmax(self.affine2(torch.relu(self.dropout(self.affine1(x)))), dim=1)


class Pole:
    """A toy environment: a state drifts, and the action pushes it back."""

    def reset(self):
        self.state, self.age = torch.randn(4) * 0.1, 0
        return self.state

    def step(self, action):
        self.age += 1
        self.state = self.state * 1.05 + (action - 0.5) * 0.2 + torch.randn(4) * 0.05
        return self.state, 1.0, bool(self.state.abs().max() > 1.2 or self.age == 40)


policy, env = Policy(), Pole()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
losses, episodes, actions = [], 0, 0
for _ in range(12 * counted.SCALE):
    state, saved, rewards, done = env.reset(), [], [], False
    while not done:
        distribution = Categorical(policy(state.unsqueeze(0)))
        action = distribution.sample()
        saved.append(distribution.log_prob(action))
        state, reward, done = env.step(action.item())
        rewards.append(reward)
        actions += 1
    running, returns = 0.0, []
    for reward in reversed(rewards):
        running = reward + 0.99 * running
        returns.insert(0, running)
    weights = torch.tensor(returns)
    weights = (weights - weights.mean()) / (weights.std(unbiased=False) + 1e-6)
    optimizer.zero_grad()
    loss = torch.cat([-log_prob * weight for log_prob, weight in zip(saved, weights, strict=True)]).sum()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    episodes += 1
counted.finish(policy, train=episodes, losses=losses, forwards=actions)
