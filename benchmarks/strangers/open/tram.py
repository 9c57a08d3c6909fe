"""Delays of trams, minute by minute: a GRU learns online while the days go by, inputs scaled by median and spread."""

import os
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

REPAIRED = os.environ.get("REPAIRED") == "1"


@dataclass
class Network:
    lines: int = 48
    minutes: int = 1080
    window: int = 24
    days: int = 8
    recent: int = 12


def delays(net, seed):
    """Delays of each line: they build up, and a part of them is passed on to the next line."""
    rng = np.random.default_rng(seed)
    series = np.zeros((net.lines, net.minutes, 6), np.float32)
    now = np.zeros(net.lines)
    clock = np.arange(net.minutes) / net.minutes
    rush = np.exp(-((clock - 0.15) ** 2) / 0.004) + np.exp(-((clock - 0.65) ** 2) / 0.008)
    for minute in range(net.minutes):
        now = 0.93 * now + 0.05 * np.roll(now, 1) + rng.exponential(0.2 + rush[minute], net.lines)
        series[:, minute, 0] = now
    series[:, :, 1] = rng.poisson(20 + 60 * rush, (net.lines, net.minutes))
    series[:, :, 2] = np.gradient(series[:, :, 0], axis=1)
    series[:, :, 3:] = rng.normal(0, 1, (1, net.minutes, 3)).cumsum(1)
    return torch.from_numpy(series)


def stream(net):
    """Windows in the order of time, each with the delays one minute later."""
    for number in range(net.days):
        day = delays(net, number)
        for start in range(0, net.minutes - net.window, net.window):
            stop = start + net.window
            yield number, day[:, start:stop], day[:, start + 1 : stop + 1, 0]


class RobustScaler:
    """There is no formula for a running median, so the windows are kept."""

    def __init__(self, keep=None):
        self.seen, self.keep = [], keep

    def __call__(self, x):
        self.seen.append(x.flatten(0, 1))
        if self.keep:
            self.seen = self.seen[-self.keep :]
        values = torch.cat(self.seen)
        middle = values.median(dim=0).values
        spread = (values - middle).abs().median(dim=0).values
        return (x - middle) / (spread + 1e-3)


class Forecaster(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.gru = nn.GRU(6, width, num_layers=2, batch_first=True)
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

    def forward(self, x, state=None):
        h, state = self.gru(x, state)
        return self.out(h).squeeze(2), state


torch.manual_seed(21)
net = Network()
model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
huber = nn.HuberLoss()
scale = RobustScaler(keep=net.recent if REPAIRED else None)

start = time.perf_counter()
state, today, count, total = None, 0, 0, torch.zeros(())
for number, x, later in stream(net):
    if number != today:
        print(f"day {today}: mean loss {total.item() / count:.4f}", flush=True)
        state, today, count, total = None, number, 0, torch.zeros(())
    guess, state = model(scale(x), state)
    state = state.detach()
    loss = huber(guess, later)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    total += loss.detach()
    count += 1
print(f"training took {time.perf_counter() - start:.2f} s")
