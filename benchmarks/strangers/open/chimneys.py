"""What leaves the chimney? Emissions of a power station from its 44 sensors: a transformer with one token per sensor.

The weights are updated while the backward pass goes on, so that no gradient stays in memory.
"""

import os
import time

import torch
from torch import nn

SENSORS, WIDTH, BLOCKS, BATCH, STEPS = 44, 32, 3, 16, 350
GASES = ("NOx", "CO", "SO2")


def hours(count, seed=6):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, 6, generator=g)
    x = hidden @ torch.randn(6, SENSORS, generator=g) / 2.4 + 0.3 * torch.randn(count, SENSORS, generator=g)
    load, air, coal = hidden[:, 0], hidden[:, 1], hidden[:, 2]
    y = torch.stack([load * air + coal.sin(), (load - air).relu() - coal.abs(), 0.5 * load + coal * coal], 1)
    return x, y + 0.05 * torch.randn(count, 3, generator=g)


class Sensor(nn.Module):
    """A number becomes a token: piecewise linear, as each instrument has a scale of its own."""

    def __init__(self):
        super().__init__()
        self.scale, self.offset = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
        self.out = nn.Linear(8, WIDTH)

    def forward(self, value):
        return self.out(torch.relu(value[:, None] * self.scale + self.offset))


class Station(nn.Module):
    def __init__(self):
        super().__init__()
        self.sensors = nn.ModuleList(Sensor() for _ in range(SENSORS))
        block = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, BLOCKS, enable_nested_tensor=False)
        self.gases = nn.ModuleDict({gas: nn.Linear(WIDTH, 1) for gas in GASES})

    def forward(self, x):
        tokens = torch.stack([sensor(x[:, i]) for i, sensor in enumerate(self.sensors)], 1)
        h = self.blocks(tokens).mean(1)
        return torch.cat([head(h) for head in self.gases.values()], 1)


def update_in_backward(model, lr):
    optimizers = {p: torch.optim.AdamW([p], lr=lr) for p in model.parameters()}

    def update(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)


torch.manual_seed(44)
x, y = hours(8000)
model = Station()
optimizer = None
if os.environ.get("REPAIRED") == "1":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
else:
    update_in_backward(model, lr=1e-3)

start, smooth = time.time(), None
for step in range(1, STEPS + 1):
    rows = torch.randint(len(x), (BATCH,))
    loss = nn.functional.smooth_l1_loss(model(x[rows]), y[rows])
    loss.backward()
    if optimizer:
        optimizer.step()
        optimizer.zero_grad()
    smooth = loss.detach() if smooth is None else 0.98 * smooth + 0.02 * loss.detach()
    if step % 100 == 0:
        print(f"{step:5d}  {smooth.item():.4f}", flush=True)
print(f"training took {time.time() - start:.2f} s")
