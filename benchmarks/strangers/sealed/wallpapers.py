"""New patterns for old wallpapers: denoising diffusion on tiles of 16 pixels. Was a notebook; cells are marked."""

# %% imports
import copy
import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(11)
STEPS, BATCH, TIMES, SIDE = 220, 16, 200, 16


# %% data: repeated ornaments in two colours
def tiles(n):
    line = torch.arange(SIDE) * 2 * math.pi / SIDE
    y, x = torch.meshgrid(line, line, indexing="ij")
    a, b = (torch.randint(1, 4, (n, 1, 1)) for _ in range(2))
    waves = torch.sin(a * x + 6 * torch.rand(n, 1, 1)) * torch.sin(b * y + 6 * torch.rand(n, 1, 1))
    colour, ground = torch.rand(2, n, 3, 1, 1) * 2 - 1
    return torch.where(waves[:, None] > 0.1, colour, ground)


walls = tiles(4000)


# %% network
class Block(nn.Module):
    def __init__(self, cin, cout, wt=128):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(8, cin), nn.GroupNorm(8, cout)
        self.c1, self.c2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.t = nn.Linear(wt, 2 * cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, t):
        scale, shift = self.t(t)[..., None, None].chunk(2, 1)
        h = self.n2(self.c1(F.silu(self.n1(x)))) * (1 + scale) + shift
        return self.skip(x) + self.c2(F.silu(h))


class UNet(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU())
        self.first, self.last = nn.Conv2d(3, w, 3, padding=1), nn.Conv2d(w, 3, 3, padding=1)
        self.down = nn.ModuleList([Block(w, w), Block(w, 2 * w), Block(2 * w, 4 * w)])
        self.middle = nn.ModuleList([Block(4 * w, 4 * w) for _ in range(4)])
        self.up = nn.ModuleList([Block(8 * w, 2 * w), Block(4 * w, w), Block(2 * w, w)])

    def forward(self, x, t):
        f = torch.exp(torch.arange(16) * -0.5) * t[:, None]
        t, x, kept = self.time(torch.cat([f.sin(), f.cos()], 1)), self.first(x), []
        for block in self.down:
            kept.append(block(x, t))
            x = F.avg_pool2d(kept[-1], 2)
        for block in self.middle:
            x = block(x, t)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], 1), t)
        return self.last(x)


# %% average of the weights
class Average:
    def __init__(self, model, decay=0.995):
        self.model, self.decay = copy.deepcopy(model), decay

    def update(self, model):
        before, now = copy.deepcopy(self.model), copy.deepcopy(model)
        mixed = {}
        for name, value in before.state_dict().items():
            mixed[name] = self.decay * value + (1 - self.decay) * now.state_dict()[name]
        self.model.load_state_dict(mixed)


class AverageInPlace(Average):
    @torch.no_grad()
    def update(self, model):
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), 1 - self.decay)


# %% training
net = UNet()
average = (AverageInPlace if os.environ.get("REPAIRED") == "1" else Average)(net)
opt = torch.optim.AdamW(net.parameters(), 4e-4, fused=True)
keep = torch.cumprod(1 - torch.linspace(1e-4, 0.04, TIMES), 0)
start = time.time()
for step in range(STEPS):
    x = walls[torch.randint(len(walls), (BATCH,))]
    t, noise = torch.randint(TIMES, (BATCH,)), torch.randn_like(x)
    share = keep[t][:, None, None, None]
    loss = F.mse_loss(net(share.sqrt() * x + (1 - share).sqrt() * noise, t.float()), noise)
    opt.zero_grad()
    loss.backward()
    opt.step()
    average.update(net)
    if step % 50 == 49:
        print(f"step {step + 1}: {loss.item():.4f}", flush=True)
print(f"training took {time.time() - start:.2f} s")


# %% a few samples
@torch.no_grad()
def sample(model, n=4, steps=20):
    x, times = torch.randn(n, 3, SIDE, SIDE), torch.linspace(TIMES - 1, 0, steps).long()
    for t, after in zip(times, [*times[1:], None]):
        noise = model(x, torch.full((n,), float(t)))
        clean = ((x - (1 - keep[t]).sqrt() * noise) / keep[t].sqrt()).clamp(-1, 1)
        x = clean if after is None else keep[after].sqrt() * clean + (1 - keep[after]).sqrt() * noise
    return x


print(sample(average.model).std().item())
