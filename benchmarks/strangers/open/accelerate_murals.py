"""Which painter painted the mural? A few hundred photographs, many short epochs: Accelerate, data workers by "spawn"."""

import os
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Settings:
    painters: int = 10
    photographs: int = 384
    side: int = 64
    batch: int = 32
    epochs: int = 4
    lr: float = 2e-3


class Murals(Dataset):
    """Each painter has a palette and a width of the brush; crops, flips and a change of light when they are read."""

    def __init__(self, settings, n, seed, train=True):
        g = torch.Generator().manual_seed(seed)
        palette = torch.rand(settings.painters, 3, generator=torch.Generator().manual_seed(5))
        self.train, self.side = train, settings.side
        self.painter = torch.randint(0, settings.painters, (n,), generator=g)
        self.photographs = []
        for p in self.painter.tolist():
            coarse = torch.rand(1, 3, 6 + 2 * p, 6 + 2 * p, generator=g) * palette[p][:, None, None] * 255
            self.photographs.append(F.interpolate(coarse, (80, 80), mode="bilinear")[0].to(torch.uint8))

    def __len__(self):
        return len(self.photographs)

    def __getitem__(self, i):
        top, left = (torch.randint(0, 80 - self.side, (2,)) if self.train else torch.tensor([8, 8])).tolist()
        x = self.photographs[i][:, top : top + self.side, left : left + self.side].float() / 255
        if self.train:
            x = x.flip(2) if torch.rand(()) < 0.5 else x
            x = (x * (0.8 + 0.4 * torch.rand(3, 1, 1)) + 0.02 * torch.randn_like(x)).clamp(0, 1)
        return x, self.painter[i]


def stage(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.GELU(), nn.Conv2d(b, b, 3, 1, 1),
                         nn.BatchNorm2d(b), nn.GELU())


def main():
    s = Settings()
    set_seed(112)
    accelerator = Accelerator(cpu=True)
    train = DataLoader(Murals(s, s.photographs, 1), batch_size=s.batch, shuffle=True, num_workers=2,
                       multiprocessing_context="spawn", persistent_workers=os.environ.get("REPAIRED") == "1")
    model = nn.Sequential(stage(3, 32), stage(32, 64), stage(64, 96), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(96, s.painters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=s.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, s.epochs * len(train))
    model, optimizer, train, schedule = accelerator.prepare(model, optimizer, train, schedule)
    start = time.perf_counter()
    for epoch in range(s.epochs):
        model.train()
        right = seen = 0
        for x, painter in train:
            with accelerator.accumulate(model):
                logits = model(x)
                loss = F.cross_entropy(logits, painter)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            right += (logits.argmax(1) == painter).sum().item()
            seen += len(x)
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {right / seen:.3f}")
    accelerator.print(f"training took {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
