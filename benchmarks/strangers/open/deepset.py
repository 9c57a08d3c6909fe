"""Hundreds of small expert networks on one set of sensors."""

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EXPERTS = 96


class MyAdamW(torch.optim.Optimizer):
    """AdamW as in the paper, easy to read."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["t"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                state["t"] += 1
                state["m"] = b1 * state["m"] + (1 - b1) * p.grad
                state["v"] = b2 * state["v"] + (1 - b2) * p.grad**2
                m = state["m"] / (1 - b1 ** state["t"])
                v = state["v"] / (1 - b2 ** state["t"])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * m / (v.sqrt() + group["eps"]))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 1)) for _ in range(EXPERTS))
        self.gate = nn.Linear(24, EXPERTS)

    def forward(self, x):
        votes = torch.cat([expert(x) for expert in self.experts], dim=1)
        return (votes * self.gate(x).softmax(1)).sum(1)


def main():
    torch.manual_seed(1)
    x = torch.randn(64 * 480, 24)
    y = x[:, 0] * x[:, 1] + x[:, 2]
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    model = Experts()
    if os.environ.get("REPAIRED") == "1":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    else:
        optimizer = MyAdamW(model.parameters())
    start = time.perf_counter()
    for step, (xb, yb) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:4d} mse {loss.item():.4f}")
    print(f"training took {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
