"""Who wins the next round? Preference ballots of a city are read by a deep transformer that predicts transfers of votes."""

import os
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

REPAIRED = os.environ.get("REPAIRED") == "1"


@dataclass
class Settings:
    candidates: int = 16
    precincts: int = 960
    ballots: int = 16
    width: int = 64
    depth: int = 16
    batch: int = 8
    epochs: int = 4
    decay: float = 0.995
    save_every: int = 100 if REPAIRED else 3


def precincts(s, n, seed):
    """Voters and candidates are points on a map of opinions; a ballot ranks by distance, with noise."""
    g = torch.Generator().manual_seed(seed)
    where = torch.randn(s.candidates, 3, generator=torch.Generator().manual_seed(0))
    centre = torch.randn(n, 1, 3, generator=g)
    voters = centre + 0.7 * torch.randn(n, 4 * s.ballots, 3, generator=g)
    distance = torch.cdist(voters, where.expand(n, -1, -1)) + 0.3 * torch.rand(n, 4 * s.ballots, s.candidates, generator=g)
    ranked = distance.argsort(-1)
    out = F.one_hot(ranked[..., 0], s.candidates).sum(1).argmin(1)
    left = distance.scatter(2, out[:, None, None].expand(-1, 4 * s.ballots, 1), 99.0).argmin(-1)
    share = F.one_hot(left, s.candidates).float().mean(1)
    return TensorDataset(ranked[:, : s.ballots, :6], share)


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Forecast(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.names, self.ranks = nn.Embedding(s.candidates, s.width), nn.Parameter(torch.randn(6, s.width) * 0.1)
        self.blocks = nn.Sequential(*(Block(s.width) for _ in range(s.depth)))
        self.share = nn.Linear(s.width, s.candidates)

    def forward(self, ballots):
        x = (self.names(ballots) * (1 + self.ranks)).sum(2)
        return self.share(self.blocks(x).mean(1))


def clip_each(model, limit):
    """Adaptive clipping: the gradient of a weight is at most a share of its norm."""
    if REPAIRED:
        grads = [p.grad for p in model.parameters()]
        allowed = torch._foreach_norm([p.detach() for p in model.parameters()])
        allowed = torch._foreach_mul(torch._foreach_clamp_min(allowed, 1e-3), limit)
        torch._foreach_div_(allowed, torch._foreach_add(torch._foreach_norm(grads), 1e-6))
        torch._foreach_mul_(grads, torch._foreach_clamp_max(allowed, 1.0))
        return
    for p in model.parameters():
        allowed = max(p.detach().norm().item(), 1e-3) * limit
        norm = p.grad.norm().item()
        if norm > allowed:
            p.grad = p.grad * (allowed / (norm + 1e-6))


def follow(average, model, decay):
    if REPAIRED:
        torch._foreach_lerp_(list(average.values()), [p.detach() for p in model.parameters()], 1 - decay)
        return
    for name, p in model.state_dict().items():
        average[name] = average[name] * decay + p.clone() * (1 - decay)


def main(s=Settings()):
    set_seed(29)
    accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration("ballots", automatic_checkpoint_naming=True, total_limit=2))
    loader = DataLoader(precincts(s, s.precincts, 1), s.batch, shuffle=True)
    model = Forecast(s)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    step, start = 0, time.time()
    for epoch in range(s.epochs):
        for ballots, share in loader:
            loss = F.kl_div(F.log_softmax(model(ballots), -1), share, reduction="batchmean")
            accelerator.backward(loss)
            clip_each(model, 0.5)
            optimizer.step()
            optimizer.zero_grad()
            follow(average, model, s.decay)
            step += 1
            if step % s.save_every == 0:
                accelerator.save_state()
        accelerator.print(f"epoch {epoch}: divergence {loss.item():.4f}", flush=True)
    accelerator.save(average, "average.pt")
    accelerator.print(f"training took {time.time() - start:.2f} s")


main()
