"""Restore Roman mosaics: fill in the tesserae that are missing. A masked autoencoder of patches, trained with Muon."""

import logging
import time

import torch
from torch import nn

logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
log = logging.getLogger(__name__)

PATCHES, PIXELS = 64, 48  # 8 x 8 patches of 4 x 4 tesserae in three colours
WIDTH, DEPTH, HEADS = 192, 2, 4


class Mosaics:
    """Bands, waves and rosettes in a few colours."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.axis = torch.linspace(-1, 1, 32)

    def __call__(self, n):
        f, p = 1 + 5 * torch.rand(3, n, 1, 1, generator=self.g), 6.28 * torch.rand(3, n, 1, 1, generator=self.g)
        x, y = self.axis[None, None], self.axis[None, :, None]
        r = (x**2 + y**2).sqrt()
        field = (f[0] * x + p[0]).sin() + (f[1] * y + p[1]).sin() + (3 * f[2] * r + p[2]).sin()
        colours = torch.rand(n, 4, 3, generator=self.g)
        index = ((field + 3) / 6 * 4).long().clamp(0, 3)
        image = torch.gather(colours, 1, index.flatten(1)[..., None].expand(-1, -1, 3))
        patches = image.view(n, 8, 4, 8, 4, 3).transpose(2, 3).reshape(n, PATCHES, PIXELS)
        return patches, torch.rand(n, PATCHES, generator=self.g) < 0.5


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Restorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(PIXELS, WIDTH)
        self.missing = nn.Parameter(torch.zeros(WIDTH))
        self.place = nn.Parameter(0.02 * torch.randn(PATCHES, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(DEPTH)))
        self.pixels = nn.Linear(WIDTH, PIXELS)

    def forward(self, patches, hidden):
        x = torch.where(hidden[..., None], self.missing, self.patch(patches)) + self.place
        return self.pixels(self.layers(x))


def optimizers(model):
    """Matrices of the layers are orthogonalized; the rest is for Adam."""
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if all(p is not m for m in matrices)]
    return torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01), torch.optim.AdamW(others, lr=1e-3)


def train(steps=125, batch=16):
    torch.manual_seed(79)
    mosaics, model = Mosaics(3), Restorer()
    both = optimizers(model)
    schedules = [torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.1, steps) for o in both]
    began = time.perf_counter()
    for step in range(steps):
        patches, hidden = mosaics(batch)
        error = (model(patches, hidden) - patches).square().mean(2)
        loss = (error * hidden).sum() / hidden.sum()
        loss.backward()
        for optimizer, schedule in zip(both, schedules):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if step % 25 == 0:
            log.info("step %d: error of the missing tesserae %.4f", step, loss.item())
    torch.save(model.state_dict(), "restorer.pt")
    print(f"training took {time.perf_counter() - began:.2f} s")


train()
