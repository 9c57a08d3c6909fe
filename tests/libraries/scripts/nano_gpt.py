"""nanoGPT's loop: batches cut from one array, fetched ahead while the model runs; accumulation, and estimate_loss."""

import math
from contextlib import nullcontext

import counted
import numpy as np
import torch
from torch import nn
from torch.nn import functional

BLOCK, BATCH, ACCUMULATE, ITERATIONS, EVERY, EVAL = 16, 6, 3, 14 * counted.SCALE, 5, 4


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = (
            t.view(*t.shape[:2], self.heads, -1).transpose(1, 2) for t in self.attn(self.ln_1(x)).chunk(3, dim=-1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(65, 32), nn.Embedding(BLOCK, 32)
        self.h = nn.ModuleList([Block(32, 4) for _ in range(2)])
        self.ln_f, self.lm_head = nn.LayerNorm(32), nn.Linear(32, 65, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, functional.cross_entropy(logits.view(-1, 65), targets.view(-1))


tokens = {name: np.random.default_rng(7).integers(0, 65, 4000).astype(np.uint16) for name in ("train", "val")}


def get_batch(split):
    data = tokens[split]
    ix = torch.randint(len(data) - BLOCK, (BATCH,)).tolist()
    x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in ix])
    return x, torch.stack([torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in ix])


@torch.no_grad()
def estimate_loss():
    model.eval()
    means = [torch.stack([model(*get_batch(split))[1] for _ in range(EVAL)]).mean().item() for split in tokens]
    model.train()
    return means


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cpu", enabled=False)
x, y = get_batch("train")
losses, iteration, evaluated = [], 0, 0
while True:
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * iteration / ITERATIONS))
    if iteration % EVERY == 0:
        losses += estimate_loss()
        evaluated += 2 * EVAL
    for _ in range(ACCUMULATE):
        with nullcontext():
            logits, loss = model(x, y)
            loss = loss / ACCUMULATE
        x, y = get_batch("train")
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item() * ACCUMULATE)
    iteration += 1
    if iteration >= ITERATIONS:
        break
counted.finish(model, train=iteration, evaluation=evaluated, losses=losses, forwards=iteration * ACCUMULATE + evaluated)
