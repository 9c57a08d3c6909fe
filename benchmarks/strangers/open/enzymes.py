"""Which reaction does an enzyme catalyse? A transformer on residues, trained with SOAP (Adam in Shampoo's eigenbasis)."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

RESIDUES, LENGTH, REACTIONS = 24, 96, 18


class Soap(torch.optim.Optimizer):
    """Vyas et al. 2024. Vectors and the embedding are left to plain Adam."""

    def __init__(self, params, lr=3e-3, betas=(0.95, 0.95), shampoo_beta=0.9, eps=1e-8, precondition_frequency=10):
        super().__init__(params, {"lr": lr, "betas": betas, "shampoo_beta": shampoo_beta, "eps": eps,
                                  "frequency": precondition_frequency})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                state, g = self.state[p], p.grad
                matrix = p.ndim == 2 and p.shape[0] > RESIDUES
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                    if matrix:
                        state["covariance"] = [g @ g.T, g.T @ g]
                        state["basis"] = [torch.linalg.eigh(c)[1] for c in state["covariance"]]
                state["t"] += 1
                rotated, m = g, state["m"].lerp_(g, 1 - first)
                if matrix:
                    left, right = state["basis"]
                    rotated, m = left.T @ g @ right, left.T @ m @ right
                v = state["v"].lerp_(rotated.square(), 1 - second)
                scale = (1 - second ** state["t"]) ** 0.5 / (1 - first ** state["t"])
                update = scale * m / (v.sqrt() + group["eps"])
                if matrix:
                    update = left @ update @ right.T
                    for c, new in zip(state["covariance"], (g @ g.T, g.T @ g)):
                        c.lerp_(new, 1 - group["shampoo_beta"])
                    if state["t"] % group["frequency"] == 0:
                        state["basis"] = [torch.linalg.qr(c @ b)[0] for c, b in zip(state["covariance"], state["basis"])]
                p.add_(update, alpha=-group["lr"])


class Enzymes(nn.Module):
    def __init__(self, d=192, layers=2):
        super().__init__()
        self.token = nn.Embedding(RESIDUES, d)
        self.place = nn.Parameter(0.02 * torch.randn(1, LENGTH, d))
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(d, REACTIONS)

    def forward(self, ids):
        return self.head(self.encoder(self.token(ids) + self.place).mean(1))


def proteins(n):
    """Each reaction has a motif of seven residues somewhere in the chain."""
    g = torch.Generator().manual_seed(12)
    motifs = torch.randint(0, RESIDUES, (REACTIONS, 7), generator=g)
    ids = torch.randint(0, RESIDUES, (n, LENGTH), generator=g)
    reaction = torch.randint(0, REACTIONS, (n,), generator=g)
    begin = torch.randint(0, LENGTH - 7, (n, 1), generator=g)
    return ids.scatter(1, begin + torch.arange(7), motifs[reaction]), reaction


def main():
    torch.manual_seed(103)
    ids, reaction = proteins(3000)
    model = Enzymes()
    frequency = 10 if os.environ.get("REPAIRED") == "1" else 1
    optimizer = Soap(model.parameters(), lr=1e-3, precondition_frequency=frequency)
    began = time.perf_counter()
    for step in range(42):
        rows = torch.randint(0, len(ids), (8,))
        loss = F.cross_entropy(model(ids[rows]), reaction[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 12 == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)
    print(f"training took {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
