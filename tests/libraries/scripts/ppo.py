"""PPO in one file: actor and critic are called one by one, in a rollout without gradients and in updates over minibatches."""

import counted
import torch
from torch import nn
from torch.distributions import Categorical


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))

    def act(self, x, action=None):
        distribution = Categorical(logits=self.actor(x))
        action = distribution.sample() if action is None else action
        return action, distribution.log_prob(action), distribution.entropy(), self.critic(x).squeeze(-1)


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
state, losses, updates, acted = torch.randn(8, 4), [], 0, 0
for _ in range(3 * counted.SCALE):
    kept = []
    for _ in range(16):
        with torch.no_grad():
            action, log_prob, _, value = agent.act(state)
        acted += 1
        following = state * 0.9 + torch.randn(8, 4) * 0.1 + (action.unsqueeze(1) - 0.5) * 0.1
        kept.append((state, action, log_prob, value, -following.abs().sum(1)))
        state = following
    states, actions, log_probs, values, rewards = (torch.cat(column) for column in zip(*kept, strict=True))
    advantages = rewards - values
    for _ in range(2):
        for picked in torch.randperm(len(states)).split(32):
            _, new, entropy, estimate = agent.act(states[picked], actions[picked])
            ratio = (new - log_probs[picked]).exp()
            gain = torch.min(advantages[picked] * ratio, advantages[picked] * ratio.clamp(0.8, 1.2)).mean()
            loss = -gain - 0.01 * entropy.mean() + 0.5 * (estimate - rewards[picked]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            updates += 1
            losses.append(loss.item())
counted.finish(agent, train=updates, evaluation=acted, losses=losses, forwards=2 * (acted + updates))
