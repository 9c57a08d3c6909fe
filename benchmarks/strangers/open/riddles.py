"""Letter riddles ("write it backwards") learnt by group-relative policy optimization: eight answers to every riddle."""

import argparse
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

LETTERS, REVERSE, EQUALS = 20, 20, 21
WORD = 18


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, past=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if past:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        return self.out(y.transpose(1, 2).reshape(b, t, d)), (k, v)


class Policy(nn.Module):
    def __init__(self, d=96, layers=3, heads=4):
        super().__init__()
        self.token, self.place = nn.Embedding(22, d), nn.Embedding(64, d)
        self.attention = nn.ModuleList(Attention(d, heads) for _ in range(layers))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(2 * layers + 1))
        self.head = nn.Linear(d, 22)

    def forward(self, ids, past=None):
        begin = past[0][0].shape[2] if past else 0
        x = self.token(ids) + self.place.weight[begin : begin + ids.shape[1]]
        present = []
        for i, (attention, mlp) in enumerate(zip(self.attention, self.mlp)):
            y, kv = attention(self.norm[2 * i](x), past[i] if past else None)
            x = x + y
            x = x + mlp(self.norm[2 * i + 1](x))
            present.append(kv)
        return self.head(self.norm[-1](x)), present


def riddles(n, generator):
    words = torch.randint(0, LETTERS, (n, WORD), generator=generator)
    sign = torch.tensor([[REVERSE, EQUALS]]).expand(n, -1)
    return torch.cat([words, sign], 1), words.flip(1)


@torch.no_grad()
def answer(policy, prompt):
    """Sample an answer, letter by letter."""
    ids, past = prompt, None
    for _ in range(WORD):
        if os.environ.get("REPAIRED") == "1":
            logits, past = policy(ids if past is None else ids[:, -1:], past)
        else:
            logits, _ = policy(ids)
        letter = torch.multinomial(logits[:, -1, :LETTERS].softmax(-1), 1)
        ids = torch.cat([ids, letter], 1)
    return ids


def log_probability(policy, ids):
    logits = policy(ids[:, :-1])[0][:, -WORD:, :LETTERS].log_softmax(-1)
    return logits.gather(-1, ids[:, -WORD:, None]).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=22)
    parser.add_argument("--riddles", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(101)
    g = torch.Generator().manual_seed(7)
    policy = Policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4, weight_decay=0.01)
    begin = time.perf_counter()
    for step in range(args.steps):
        prompt, solution = riddles(args.riddles, g)
        ids = answer(policy, prompt.repeat_interleave(args.group, 0))
        reward = (ids[:, -WORD:] == solution.repeat_interleave(args.group, 0)).float().mean(1)
        grouped = reward.view(-1, args.group)
        advantage = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        with torch.no_grad():
            old = log_probability(policy, ids)
        for _ in range(2):
            ratio = (log_probability(policy, ids) - old).exp()
            loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
        if step % 7 == 0:
            print(f"step {step}: reward {reward.mean():.3f}", flush=True)
    print(f"training took {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
