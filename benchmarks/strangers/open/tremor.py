"""Tell tremor from wrist accelerometers: a leaky recurrent net unrolled by hand, with learned time constants."""

import os
from time import perf_counter

import torch
from torch import nn

torch.manual_seed(11)
torch.autograd.set_detect_anomaly(os.environ.get("REPAIRED") != "1")

STEPS, CHANNELS, HIDDEN, KINDS = 64, 6, 96, 4


class LeakyRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Linear(CHANNELS, HIDDEN)
        self.recur = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.tau = nn.Parameter(torch.linspace(-2, 2, HIDDEN))
        self.out = nn.Sequential(nn.LayerNorm(2 * HIDDEN), nn.Linear(2 * HIDDEN, KINDS))

    def forward(self, x):
        leak = torch.sigmoid(self.tau)
        drive = self.into(x)
        h = x.new_zeros(len(x), HIDDEN)
        total = h
        for t in range(STEPS):
            h = leak * h + (1 - leak) * torch.tanh(drive[:, t] + self.recur(h))
            total = total + h
        return self.out(torch.cat([h, total / STEPS], 1))


def recordings(n):
    kind = torch.randint(0, KINDS, (n,))
    hertz = 3.0 + 1.5 * kind + 0.4 * torch.randn(n)
    t = torch.arange(STEPS) / 50
    phase = 6.283 * torch.rand(n, CHANNELS, 1)
    amplitude = 0.5 + torch.rand(n, CHANNELS, 1)
    wave = amplitude * torch.sin(6.283 * hertz[:, None, None] * t + phase)
    return (wave + 0.6 * torch.randn_like(wave)).transpose(1, 2).contiguous(), kind


model = LeakyRNN()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
x, y = recordings(3200)
begin = perf_counter()
for epoch in range(2):
    running = []
    for rows in torch.randperm(len(x)).split(64):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running.append(loss.detach())
    print(f"epoch {epoch}: {torch.stack(running).mean().item():.4f}")
print(f"training took {perf_counter() - begin:.2f} s")
