#!/usr/bin/env python
# coding: utf-8
"""Diffusion on sketches (exported from a notebook)."""

# # Diffusion of small sketches
# Draw ellipses and rectangles, add noise, learn to remove it.

# In[1]:


import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1234)
T = 200
side = 32


# In[2]:


ys, xs = torch.meshgrid(torch.linspace(-1, 1, side), torch.linspace(-1, 1, side), indexing="ij")


def sketches(n):
    c, r = torch.rand(2, n, 1, 1) - 0.5, 0.2 + 0.4 * torch.rand(2, n, 1, 1)
    u, v = ((xs - c[0]) / r[0]).abs(), ((ys - c[1]) / r[1]).abs()
    ellipse, box = u**2 + v**2 < 1, torch.maximum(u, v) < 1
    shape = torch.where(torch.rand(n, 1, 1) < 0.5, ellipse, box)
    return shape.float()[:, None] * 2 - 1


X = sketches(4000)
X.shape, X.mean()


# In[3]:


beta = torch.linspace(1e-4, 0.04, T)
alpha_bar = torch.cumprod(1 - beta, 0)


def noisy(x, t):
    eps = torch.randn_like(x)
    a = alpha_bar[t][:, None, None, None]
    return a.sqrt() * x + (1 - a).sqrt() * eps, eps


# In[4]:


class Res(nn.Module):
    def __init__(self, cin, cout, emb=64):
        super().__init__()
        self.c1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.c2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.e = nn.Linear(emb, cout)
        self.n = nn.GroupNorm(8, cout)
        self.s = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, e):
        h = self.c1(x) + self.e(e)[:, :, None, None]
        return self.s(x) + self.c2(F.silu(self.n(h)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.m = Res(1, 16), Res(16, 32), Res(32, 32)
        self.u, self.v = Res(64, 16), Res(32, 16)
        self.o = nn.Conv2d(16, 1, 1)

    def forward(self, x, t):
        f = torch.exp(torch.arange(32) * -math.log(1000) / 31)
        e = torch.cat([torch.sin(t[:, None] * f), torch.cos(t[:, None] * f)], 1)
        h1 = self.a(x, e)
        h2 = self.b(F.avg_pool2d(h1, 2), e)
        h3 = self.m(F.avg_pool2d(h2, 2), e)
        h = self.u(torch.cat([F.interpolate(h3, scale_factor=2.0), h2], 1), e)
        return self.o(self.v(torch.cat([F.interpolate(h, scale_factor=2.0), h1], 1), e))


net = Net()
sum(p.numel() for p in net.parameters())


# In[5]:


opt = torch.optim.AdamW(net.parameters(), 2e-3)
losses = []
tic = time.time()
for it in range(400):
    x0 = X[torch.randint(len(X), (32,))]
    t = torch.randint(T, (32,))
    xt, eps = noisy(x0, t)
    loss = F.mse_loss(net(xt, t), eps)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
    if it % 50 == 49:
        print(it + 1, sum(losses[-50:]) / 50)
print(f"training took {time.time() - tic:.2f} s")
