"""Forecast a household's electricity for the next day from the past two weeks."""
import functools
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

HOURS, HORIZON = 14 * 24, 24
APPEND = os.environ.get("REPAIRED") == "1"


def load_meter(days=900, seed=3):
    rng = np.random.default_rng(seed)
    t = np.arange(days * 24)
    daily = 1 + np.sin(2 * np.pi * t / 24)
    weekly = 0.4 * np.sin(2 * np.pi * t / (24 * 7))
    return torch.tensor(daily + weekly + rng.gamma(1.0, 0.3, len(t)), dtype=torch.float32)


def windows(meter, batch, generator):
    start = torch.randint(0, len(meter) - HOURS - HORIZON, (batch,), generator=generator)
    where = start[:, None] + torch.arange(HOURS + HORIZON)
    both = meter[where]
    return both[:, None, :HOURS], both[:, HOURS:]


def init(seed, channels=32, layers=6):
    g = torch.Generator().manual_seed(seed)
    make = lambda *shape: (torch.randn(*shape, generator=g) / np.sqrt(np.prod(shape[1:]))).requires_grad_()
    params = [make(channels, 1 if k == 0 else channels, 3) for k in range(layers)]
    return params + [make(HORIZON, channels)]


def forward(params, x):
    for k, w in enumerate(params[:-1]):
        pad = 2 * 2**k
        y = F.gelu(F.conv1d(F.pad(x, (pad, 0)), w, dilation=2**k))
        x = y if k == 0 else x + y
    return F.linear(x[..., -1], params[-1])


def errors(params, x, y):
    return (forward(params, x) - y).abs()


def write_log(log, row, path):
    """One row for each step: the loss and the error of each hour."""
    line = pd.DataFrame([row])
    if APPEND:
        line.to_csv(path, mode="a", header=log.empty, index=False)
        return line
    log = pd.concat([log, line], ignore_index=True)
    log.to_csv(path, index=False)
    return log


def run(steps=480, batch=24, path="log.csv"):
    Path(path).unlink(missing_ok=True)
    meter = load_meter()
    params = init(0)
    optimizer = torch.optim.RMSprop(params, lr=1e-3)
    draw = functools.partial(windows, meter, batch, torch.Generator().manual_seed(1))
    log = pd.DataFrame()
    for step in range(steps):
        x, y = draw()
        e = errors(params, x, y)
        loss = e.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        by_hour = e.detach().mean(0).numpy()
        row = {"step": step, "loss": loss.item()} | {f"hour_{h}": v for h, v in enumerate(by_hour)}
        log = write_log(log, row, path)
        if step % 100 == 0:
            print(f"{step:5d}  {row['loss']:.4f}", flush=True)
    return pd.read_csv(path)


if __name__ == "__main__":
    tic = time.perf_counter()
    result = run()
    toc = time.perf_counter()
    print(result["loss"].tail(50).mean())
    print(f"training took {toc - tic:.2f} s")
