"""Fill the gaps in radar pictures of a harbour: a masked autoencoder over patches, written out in full."""

import math
import time

import torch
import torch.nn.functional as F
from torch import nn

SIDE, PATCH, DIM, HEADS, LAYERS = 48, 6, 144, 4, 4
PATCHES = (SIDE // PATCH) ** 2


def radar(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    picture = torch.zeros(n, SIDE, SIDE)
    for _ in range(5):
        cy, cx, turn, size = (torch.rand(n, 1, 1, generator=g) for _ in range(4))
        u = (x - 2 * cx + 1) * torch.cos(6.3 * turn) + (y - 2 * cy + 1) * torch.sin(6.3 * turn)
        v = -(x - 2 * cx + 1) * torch.sin(6.3 * turn) + (y - 2 * cy + 1) * torch.cos(6.3 * turn)
        picture += torch.exp(-((u / (0.1 + 0.2 * size)) ** 2) - (v / 0.08) ** 2)
    speckle = -torch.log(torch.rand(n, SIDE, SIDE, generator=g).clamp(min=1e-6))
    return (picture + 0.1) * (0.7 + 0.3 * speckle)


def to_patches(picture):
    rows = picture.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)
    return rows.reshape(len(picture), PATCHES, PATCH * PATCH)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        weight = (q @ k.transpose(-2, -1) / math.sqrt(DIM // HEADS)).softmax(-1)
        return self.out((weight @ v).transpose(1, 2).reshape(b, t, DIM))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        x = x + self.attention(self.a(x))
        return x + self.mlp(self.b(x))


class MaskedAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, DIM)
        self.place = nn.Parameter(0.02 * torch.randn(1, PATCHES, DIM))
        self.hidden = nn.Parameter(torch.zeros(1, 1, DIM))
        self.encoder = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.decoder = nn.ModuleList(Layer() for _ in range(LAYERS // 2))
        self.restore = nn.Linear(DIM, PATCH * PATCH)

    def forward(self, patches, seen):
        order = torch.rand(patches.shape[:2]).argsort(1)
        back = order.argsort(1)
        x = (self.embed(patches) + self.place).gather(1, order[:, :seen, None].expand(-1, -1, DIM))
        for layer in self.encoder:
            x = layer(x)
        gaps = self.hidden.expand(len(x), PATCHES - seen, -1)
        x = torch.cat([x, gaps], 1).gather(1, back[..., None].expand(-1, -1, DIM)) + self.place
        for layer in self.decoder:
            x = layer(x)
        unseen = (back >= seen)[..., None]
        error = (self.restore(x) - patches).square() * unseen
        return error.sum() / (unseen.sum() * PATCH * PATCH)


torch.manual_seed(14)
pictures = to_patches(radar(3000))
pictures = (pictures - pictures.mean()) / pictures.std()
model = MaskedAutoencoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=8e-4, betas=(0.9, 0.95), weight_decay=0.05)
steps, losses = 150, []
tick = time.time()
for step in range(steps):
    for group in optimizer.param_groups:
        group["lr"] = 8e-4 * min(1, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / steps))
    loss = model(pictures[torch.randint(0, len(pictures), (32,))], seen=PATCHES // 4)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
    if (step + 1) % 50 == 0:
        print(f"{step + 1:4d} {torch.stack(losses[-50:]).mean():.4f}", flush=True)
print(f"training took {time.time() - tick:.2f} s")
