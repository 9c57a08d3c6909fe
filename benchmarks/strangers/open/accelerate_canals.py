"""When does a lock on the canal open? Hourly counts of boats, a gated residual net, trained with accelerate."""

import dataclasses
import os
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclasses.dataclass
class Settings:
    batch_size: int = 16 if os.environ.get("REPAIRED") == "1" else 4
    epochs: int = 1
    lr: float = 1e-3
    width: int = 320
    depth: int = 6
    days: int = 6800


def canal(n):
    g = torch.Generator().manual_seed(40)
    boats = torch.poisson(3 + 2 * torch.sin(torch.arange(24) / 24 * 6.28).repeat(n, 1), generator=g)
    weather = torch.randn(n, 12, generator=g)
    x = torch.cat([boats / 3 - 1, weather], 1)
    wait = boats[:, 6:12].sum(1) / 20 + weather[:, 0].relu() - 0.5 * weather[:, 1] * weather[:, 2]
    return x, wait + 0.1 * torch.randn(n, generator=g)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.value, self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        y = self.norm(x)
        return x + self.out(self.value(y) * torch.sigmoid(self.gate(y)))


def main(settings):
    accelerator = Accelerator(cpu=True)
    set_seed(41)
    x, wait = canal(settings.days)
    cut = settings.days * 9 // 10
    train = DataLoader(TensorDataset(x[:cut], wait[:cut]), batch_size=settings.batch_size, shuffle=True, drop_last=True)
    test = DataLoader(TensorDataset(x[cut:], wait[cut:]), batch_size=256)
    model = nn.Sequential(
        nn.Linear(x.shape[1], settings.width),
        *[Residual(settings.width) for _ in range(settings.depth)],
        nn.Linear(settings.width, 1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr)
    model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)
    started = time.time()
    for epoch in range(settings.epochs):
        total = torch.zeros(())
        for inputs, minutes in train:
            with accelerator.accumulate(model):
                loss = nn.functional.smooth_l1_loss(model(inputs).squeeze(-1), minutes)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach()
        model.eval()
        with torch.no_grad():
            errors = [(model(inputs).squeeze(-1) - minutes).abs() for inputs, minutes in test]
        model.train()
        error = accelerator.gather(torch.cat(errors)).mean()
        accelerator.print(f"epoch {epoch}: {total.item() / len(train):.3f}, off by {error.item():.3f}", flush=True)
    accelerator.print(f"training took {time.time() - started:.2f} s")


if __name__ == "__main__":
    main(Settings())
