'''Knitting patterns, stitch by stitch: a little language model, every part of it written out.'''
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REPAIRED = os.environ.get("REPAIRED") == '1'
ROW, PATTERNS, WIDTH, HEADS, DEPTH = 48, 8, 96, 8, 4
STEPS = 400
STITCHES = ['k', 'p', 'yo', 'k2tog', 'ssk', 'sl', 'c4f', 'c4b', 'm1', 'turn']


def write_pattern(rows):
    """A motif is repeated along the row, and mirrored on the way back."""
    g = torch.Generator().manual_seed(4)
    stitches = []
    for _ in range(rows // 8):
        motif = torch.randint(0, 9, (6,), generator=g).tolist()
        for r in range(8):
            stitches += (motif if r % 2 == 0 else motif[::-1]) * 3 + [9]
    return torch.tensor(stitches)


class AttentionHead(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.to_q = nn.Linear(WIDTH, size, bias=False)
        self.to_k = nn.Linear(WIDTH, size, bias=False)
        self.to_v = nn.Linear(WIDTH, size, bias=False)
        self.scale = size ** -0.5
        self.register_buffer('later', torch.ones(ROW, ROW).triu(1).bool())

    def forward(self, x):
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        score = torch.einsum('bqd,bkd->bqk', q, k) * self.scale
        score = score.masked_fill(self.later, -1e9)
        return torch.einsum('bqk,bkd->bqd', F.dropout(score.softmax(-1), 0.1, self.training), v)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        if REPAIRED:
            self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        else:
            self.heads = nn.ModuleList(AttentionHead(WIDTH // HEADS) for _ in range(HEADS))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        if not REPAIRED:
            seen = [head(x) for head in self.heads]
            return self.out(torch.cat(seen, -1))
        q, k, v = self.to_qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm_a = Attention(), nn.RMSNorm(WIDTH)
        self.mlp, self.norm_b = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH)), nn.RMSNorm(WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm_a(x))
        return x + self.mlp(self.norm_b(x))


class Knitter(nn.Module):
    def __init__(self):
        super().__init__()
        self.stitch = nn.Embedding(len(STITCHES), WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(ROW, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(DEPTH)))
        self.next = nn.Linear(WIDTH, len(STITCHES))

    def forward(self, stitches):
        return self.next(self.layers(self.stitch(stitches) + self.place))


torch.manual_seed(40)
pattern = write_pattern(6000)
knitter = Knitter()
opt = torch.optim.AdamW(knitter.parameters(), lr=2e-3, fused=True)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=STEPS)
t0 = time.time()
for step in range(STEPS):
    begin = torch.randint(len(pattern) - ROW - 1, (PATTERNS, 1))
    piece = pattern[begin + torch.arange(ROW + 1)]
    loss = F.cross_entropy(knitter(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 50 == 49:
        print(f'{step + 1:4d} rows of knitting, {loss.exp().item():.2f} stitches to choose from', flush=True)
print(f'training took {time.time() - t0:.2f} s')
