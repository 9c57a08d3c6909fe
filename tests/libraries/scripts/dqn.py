"""PyTorch's DQN tutorial: actions without gradients, then an update in which a target network runs without gradients."""

import random
from collections import deque

import counted
import torch
from torch import nn


def network():
    return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))


policy_net, target_net = network(), network()
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)
memory, state = deque(maxlen=500), torch.randn(4)
losses, updates, acted = [], 0, 0
for turn in range(60 * counted.SCALE):
    with torch.no_grad():
        action = policy_net(state.unsqueeze(0)).argmax(1).item()
    acted += 1
    following = state * 0.9 + torch.randn(4) * 0.1 + (action - 0.5) * 0.1
    memory.append((state, action, -following.abs().sum(), following))
    state = following
    if len(memory) < 16:
        continue
    states, actions, rewards, next_states = zip(*random.sample(memory, 16), strict=True)
    values = policy_net(torch.stack(states)).gather(1, torch.tensor(actions).unsqueeze(1))
    with torch.no_grad():
        expected = torch.stack(rewards) + 0.99 * target_net(torch.stack(next_states)).max(1).values
    loss = nn.functional.smooth_l1_loss(values.squeeze(1), expected)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    updates += 1
    losses.append(loss.item())
    if turn % 10 == 0:
        target_net.load_state_dict(policy_net.state_dict())
counted.finish(policy_net, target_net, train=updates, evaluation=acted, losses=losses, forwards=acted + 2 * updates)
