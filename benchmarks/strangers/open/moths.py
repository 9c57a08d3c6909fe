"""Moths, family after family: a network must not forget the families of last summer (elastic weight consolidation)."""

import argparse
import os
import time

import torch
import torch.nn as nn
from torch.nn.utils import parameters_to_vector


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--steps", type=int, default=110)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--strength", type=float, default=50.0)
    parser.add_argument("--fused", action="store_true", default=os.environ.get("REPAIRED") == "1")
    return parser.parse_args()


class Family:
    """Measures of wings of one family, of eight species."""

    def __init__(self, seed, features=64, species=8):
        self.g = torch.Generator().manual_seed(seed)
        self.centres = 1.5 * torch.randn(species, features, generator=self.g)

    def batch(self, size):
        y = torch.randint(0, len(self.centres), (size,), generator=self.g)
        x = self.centres[y] + torch.randn(size, self.centres.shape[1], generator=self.g)
        return x.sin() + 0.1 * x, y


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


def network(depth=12, width=96, species=8):
    body = (Residual(width) for _ in range(depth))
    return nn.Sequential(nn.Linear(64, width), *body, nn.LayerNorm(width), nn.Linear(width, species))


class Consolidation:
    """After each task: the importance (diagonal Fisher) of each weight, and the value it had."""

    def __init__(self, model):
        self.model, self.memory = model, []

    def remember(self, family, batches=10):
        fisher = {n: torch.zeros_like(p) for n, p in self.model.named_parameters()}
        for _ in range(batches):
            x, y = family.batch(64)
            self.model.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            for n, p in self.model.named_parameters():
                fisher[n] += p.grad.detach() ** 2 / batches
        self.memory.append((fisher, {n: p.detach().clone() for n, p in self.model.named_parameters()}))

    def penalty(self):
        loss = 0.0
        for fisher, old in self.memory:
            for n, p in self.model.named_parameters():
                loss = loss + (fisher[n] * (p - old[n]) ** 2).sum()
        return loss


class FlatConsolidation(Consolidation):
    """The sum of all tasks' parabolas is a parabola."""

    def __init__(self, model):
        super().__init__(model)
        self.a = self.b = self.c = torch.zeros(())

    def remember(self, family, batches=10):
        super().remember(family, batches)
        fisher, old = (torch.cat([t.flatten() for t in part.values()]) for part in self.memory.pop())
        self.a, self.b, self.c = self.a + fisher, self.b + fisher * old, self.c + (fisher * old**2).sum()

    def penalty(self):
        if self.a.ndim == 0:
            return 0.0
        p = parameters_to_vector(self.model.parameters())
        return torch.dot(self.a * p - 2 * self.b, p) + self.c


def main():
    args = get_args()
    torch.manual_seed(8)
    net = network()
    consolidation = (FlatConsolidation if args.fused else Consolidation)(net)
    families = [Family(seed) for seed in range(args.tasks)]
    tick = time.perf_counter()
    for number, family in enumerate(families):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-5)
        for _ in range(args.steps):
            x, y = family.batch(args.batch)
            loss = nn.functional.cross_entropy(net(x), y) + args.strength * consolidation.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        consolidation.remember(family)
        with torch.no_grad():
            hits = [(net(x).argmax(1) == y).float().mean().item() for x, y in (f.batch(500) for f in families[: number + 1])]
        print(f"family {number}: loss {loss.item():.3f}, accuracy " + " ".join(f"{h:.2f}" for h in hits), flush=True)
    print(f"training took {time.perf_counter() - tick:.2f} s")


main()
