"""A network that solves the heat equation u_t = 0.1 u_xx on [0, 1], trained with L-BFGS."""

import math
import time

import torch
from torch import nn

torch.manual_seed(4)
torch.set_default_dtype(torch.float32)


class Solution(nn.Module):
    def __init__(self, width=128, depth=4):
        super().__init__()
        sizes = [2] + [width] * depth
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.last = nn.Linear(width, 1)
        for layer in self.hidden:
            nn.init.xavier_normal_(layer.weight)

    def forward(self, t, x):
        h = torch.cat([t, x], dim=1)
        for layer in self.hidden:
            h = torch.tanh(layer(h))
        return self.last(h)


def derivative(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


inside_t = torch.rand(3000, 1, requires_grad=True)
inside_x = torch.rand(3000, 1, requires_grad=True)
first_x = torch.rand(400, 1)
first_u = torch.sin(math.pi * first_x)
edge_t = torch.rand(400, 1)
edge_x = torch.randint(0, 2, (400, 1)).float()

net = Solution()
lbfgs = torch.optim.LBFGS(
    net.parameters(), lr=0.8, max_iter=8, history_size=20, line_search_fn="strong_wolfe", tolerance_change=0.0
)
parts = {}


def closure():
    lbfgs.zero_grad()
    u = net(inside_t, inside_x)
    u_t = derivative(u, inside_t)
    u_xx = derivative(derivative(u, inside_x), inside_x)
    parts["equation"] = (u_t - 0.1 * u_xx).square().mean()
    parts["start"] = (net(torch.zeros_like(first_x), first_x) - first_u).square().mean()
    parts["edge"] = net(edge_t, edge_x).square().mean()
    loss = parts["equation"] + 10 * parts["start"] + 10 * parts["edge"]
    loss.backward()
    return loss


if __name__ == "__main__":
    start = time.time()
    for step in range(32):
        loss = lbfgs.step(closure)
        if step % 8 == 0:
            print(step, {name: f"{value.item():.2e}" for name, value in parts.items()})
    exact = torch.sin(math.pi * inside_x) * torch.exp(-0.1 * math.pi**2 * inside_t)
    print(f"training took {time.time() - start:.2f} s")
    print(f"largest error {float((net(inside_t, inside_x) - exact).abs().max()):.4f}")
