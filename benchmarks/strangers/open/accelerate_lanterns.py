"""Ships signal with lanterns: which of the harbour's twenty messages is it? A recurrent net that keeps its memory with
orthogonal weights, trained with accelerate.
"""

import os
import time
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.data import DataLoader, TensorDataset

MESSAGES, LENGTH = 20, 48
memo = parametrize.cached if os.environ.get("REPAIRED") == "1" else nullcontext


def signals(count, seed=3):
    """Long and short flashes, seen through fog from a moving deck."""
    g = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 2, (MESSAGES, 6), generator=g)
    which = torch.randint(0, MESSAGES, (count,), generator=g)
    light = torch.zeros(count, LENGTH)
    for row, message in enumerate(which.tolist()):
        at = int(torch.randint(0, 8, (), generator=g))
        for long in codes[message].tolist():
            light[row, at : at + 2 + 3 * long] = 1
            at += 4 + 3 * long
    fog = 0.4 + 0.6 * torch.rand(count, 1, generator=g)
    seen = fog * light + 0.15 * torch.randn(count, LENGTH, generator=g)
    roll = torch.sin(torch.arange(LENGTH) / 5 + 6 * torch.rand(count, 1, generator=g))
    return torch.stack([seen, roll, seen * roll], 2), which


class Memory(nn.Module):
    """h becomes modrelu(Q h + U x), Q orthogonal."""

    def __init__(self, inputs, width):
        super().__init__()
        self.keep = parametrizations.orthogonal(nn.Linear(width, width, bias=False))
        self.take = nn.Linear(inputs, width)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        h, outputs = x.new_zeros(len(x), self.bias.shape[0]), []
        for u in self.take(x).unbind(1):
            z = self.keep(h) + u
            h = z.sign() * torch.relu(z.abs() + self.bias)
            outputs.append(h)
        return torch.stack(outputs, 1)


class Reader(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.memory = Memory(3, width)
        self.mix = nn.Sequential(
            nn.Conv1d(width, 128, 5, padding=2), nn.GELU(), nn.Conv1d(128, 128, 5, padding=2), nn.GELU()
        )
        self.out = nn.Linear(128, MESSAGES)

    def forward(self, x):
        h = self.mix(self.memory(x).transpose(1, 2))
        return self.out(h.amax(2))


def main():
    set_seed(1)
    accelerator = Accelerator(cpu=True)
    data = TensorDataset(*signals(2400))
    loader = DataLoader(data, batch_size=48, shuffle=True, drop_last=True)
    model = Reader()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4 * len(loader))
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    begin = time.time()
    for epoch in range(4):
        right = count = 0
        for x, message in loader:
            with memo():
                logits = model(x)
            loss = nn.functional.cross_entropy(logits, message)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            right += int((logits.argmax(1) == message).sum())
            count += len(message)
        accelerator.print(f"epoch {epoch}: {right / count:.3f} of the messages", flush=True)
    accelerator.print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
