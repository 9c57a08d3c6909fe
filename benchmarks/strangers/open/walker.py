"""TD3 with behaviour cloning on logged transitions of a walking robot (offline reinforcement learning)."""
import argparse
import copy
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--updates", type=int, default=900)
parser.add_argument("--batch", type=int, default=512)
parser.add_argument("--hidden", type=int, default=384)
parser.add_argument("--discount", type=float, default=0.99)
parser.add_argument("--tau", type=float, default=0.005)
parser.add_argument("--alpha", type=float, default=2.5)
args = parser.parse_args()
torch.manual_seed(4)
OBS, ACT = 24, 6


def mlp(i, o):
    h = args.hidden
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(OBS, ACT)

    def forward(self, s):
        return torch.tanh(self.net(s))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1, self.q2 = mlp(OBS + ACT, 1), mlp(OBS + ACT, 1)

    def forward(self, s, a):
        sa = torch.cat([s, a], 1)
        return self.q1(sa), self.q2(sa)


def logged_data(n=100_000):
    dynamics = torch.randn(OBS + ACT, OBS) / (OBS + ACT) ** 0.5
    s = torch.randn(n, OBS)
    a = torch.tanh(s @ torch.randn(OBS, ACT) / 5 + 0.3 * torch.randn(n, ACT))
    s2 = torch.tanh(torch.cat([s, a], 1) @ dynamics)
    r = s2[:, :1] - 0.1 * a.pow(2).sum(1, keepdim=True)
    return s, a, r, s2, (torch.rand(n, 1) > 0.01).float()


data = logged_data()
actor, critic = Actor(), Critic()
actor_target, critic_target = copy.deepcopy(actor), copy.deepcopy(critic)
actor_opt = torch.optim.Adam(actor.parameters(), lr=3e-4)
critic_opt = torch.optim.Adam(critic.parameters(), lr=3e-4)


@torch.no_grad()
def polyak(target, source):
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), args.tau)


def critic_update(s, a, r, s2, alive):
    with torch.no_grad():
        noise = (torch.randn_like(a) * 0.2).clamp(-0.5, 0.5)
        a2 = (actor_target(s2) + noise).clamp(-1, 1)
        goal = r + alive * args.discount * torch.min(*critic_target(s2, a2))
    q1, q2 = critic(s, a)
    loss = F.mse_loss(q1, goal) + F.mse_loss(q2, goal)
    critic_opt.zero_grad()
    loss.backward()
    critic_opt.step()
    return loss


def actor_update(s, a):
    pi = actor(s)
    q = critic(s, pi)[0]
    loss = -args.alpha * q.mean() / q.abs().mean().detach() + F.mse_loss(pi, a)
    actor_opt.zero_grad()
    loss.backward()
    actor_opt.step()
    polyak(actor_target, actor)
    polyak(critic_target, critic)


t0 = time.time()
for update in range(1, args.updates + 1):
    rows = torch.randint(0, len(data[0]), (args.batch,))
    s, a, r, s2, alive = (t[rows] for t in data)
    loss = critic_update(s, a, r, s2, alive)
    if update % 2 == 0:
        actor_update(s, a)
    if update % 150 == 0:
        print(f"update {update}: critic loss {loss.item():.4f}")
print(f"training took {time.time() - t0:.2f} s")
torch.save({"actor": actor.state_dict(), "critic": critic.state_dict()}, "walker.pt")
