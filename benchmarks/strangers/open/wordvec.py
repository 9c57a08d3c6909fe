"""Skip-gram word vectors with negative sampling."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

SPARSE = os.environ.get("REPAIRED") == "1"
VOCAB, DIM, NEG, BATCH, STEPS = 40_000, 96, 8, 2048, 260


class SkipGram(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.center = nn.Embedding(VOCAB, DIM, sparse=sparse)
        self.context = nn.Embedding(VOCAB, DIM, sparse=sparse)
        nn.init.normal_(self.center.weight, std=0.05)
        nn.init.zeros_(self.context.weight)

    def forward(self, word, context, negatives):
        w = self.center(word)
        positive = (w * self.context(context)).sum(1)
        negative = torch.bmm(self.context(negatives), w.unsqueeze(2)).squeeze(2)
        return -(F.logsigmoid(positive) + F.logsigmoid(-negative).sum(1)).mean()


def zipf(*shape):
    return (VOCAB ** torch.rand(*shape)).long().clamp_(max=VOCAB - 1)


def train():
    torch.manual_seed(0)
    corpus = zipf(500_000)
    model = SkipGram(SPARSE)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-3) if SPARSE else torch.optim.Adam(model.parameters(), lr=1e-3)
    total = 0.0
    started = time.time()
    for step in range(STEPS):
        at = torch.randint(5, len(corpus) - 5, (BATCH,))
        word, context = corpus[at], corpus[at + torch.randint(1, 5, (BATCH,))]
        loss = model(word, context, zipf(BATCH, NEG))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {total / 50:.4f}")
            total = 0.0
    print(f"training took {time.time() - started:.2f} s")
    torch.save(model.center.weight.detach().half(), "vectors.pt")


if __name__ == "__main__":
    train()
