"""Grow snowflakes from noise: a denoising diffusion model with v-prediction, a U-Net with attention at the coarse level, an
averaged copy of the weights for sampling.
"""

from __future__ import annotations

import argparse
import copy
import logging
import math
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

log = logging.getLogger("snowflakes")
SIDE = 32


def grow(count: int, generator: torch.Generator) -> Tensor:
    """Six-fold crystals: a radial profile that is repeated around the centre."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    radius, angle = (x * x + y * y).sqrt(), torch.atan2(y, x)
    amount = torch.rand(count, 4, 1, 1, generator=generator)
    turn = 0.2 * torch.randn(count, 1, 1, generator=generator)
    arms = torch.cos(6 * (angle + turn)) * amount[:, 0] + torch.cos(12 * (angle + turn)) * amount[:, 1]
    rings = torch.cos(14 * radius * (0.5 + amount[:, 2]))
    edge = torch.sigmoid(18 * (0.45 + 0.4 * amount[:, 3] + 0.2 * arms - radius))
    return (2 * edge * (0.5 + 0.5 * rings) - 1)[:, None]


class Residual(nn.Module):
    def __init__(self, cin: int, cout: int, time_width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, cin), nn.GroupNorm(8, cout)
        self.conv1, self.conv2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.shift = nn.Linear(time_width, 2 * cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        scale, shift = self.shift(t)[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(self.conv1(F.silu(self.norm1(x)))) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(h))


class UNet(nn.Module):
    def __init__(self, width: int = 32, time_width: int = 128) -> None:
        super().__init__()
        self.frequencies = nn.Buffer(torch.exp(torch.linspace(0, math.log(1000), width // 2)))
        self.time = nn.Sequential(nn.Linear(width, time_width), nn.SiLU(), nn.Linear(time_width, time_width), nn.SiLU())
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.down1 = Residual(width, width, time_width)
        self.down2 = Residual(width, 2 * width, time_width)
        self.middle = Residual(2 * width, 2 * width, time_width)
        self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.up2 = Residual(4 * width, width, time_width)
        self.up1 = Residual(2 * width, width, time_width)
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angle = t[:, None] * self.frequencies
        t = self.time(torch.cat([angle.sin(), angle.cos()], dim=1))
        first = self.down1(self.stem(x), t)
        second = self.down2(F.avg_pool2d(first, 2), t)
        h = self.middle(F.avg_pool2d(second, 2), t)
        flat = h.flatten(2).transpose(1, 2)
        h = h + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).unflatten(2, h.shape[2:])
        h = self.up2(torch.cat([F.interpolate(h, scale_factor=2), second], dim=1), t)
        return self.last(F.silu(self.up1(torch.cat([F.interpolate(h, scale_factor=2), first], dim=1), t)))


@torch.no_grad()
def sample(model: nn.Module, count: int, steps: int = 20) -> Tensor:
    x = torch.randn(count, 1, SIDE, SIDE)
    grid = torch.linspace(1, 0, steps + 1)
    for now, then in zip(grid[:-1], grid[1:], strict=True):
        alpha, sigma = torch.cos(now * math.pi / 2), torch.sin(now * math.pi / 2)
        v = model(x, now.expand(count))
        clean, noise = alpha * x - sigma * v, sigma * x + alpha * v
        x = torch.cos(then * math.pi / 2) * clean + torch.sin(then * math.pi / 2) * noise
    return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=75)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--decay", type=float, default=0.99)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    torch.manual_seed(31)
    flakes = grow(4096, torch.Generator().manual_seed(1))
    model = UNet()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.01)
    begin = time.perf_counter()
    for step in range(1, args.steps + 1):
        x = flakes[torch.randint(len(flakes), (args.batch,))]
        t, noise = torch.rand(args.batch), torch.randn_like(x)
        alpha, sigma = ((part(t * math.pi / 2))[:, None, None, None] for part in (torch.cos, torch.sin))
        loss = F.mse_loss(model(alpha * x + sigma * noise, t), alpha * noise - sigma * x)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - args.decay)
        if step % 20 == 0:
            log.info("step %d: loss %.4f", step, loss.item())
    torch.save(sample(average, 4), "flakes.pt")
    print(f"training took {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
