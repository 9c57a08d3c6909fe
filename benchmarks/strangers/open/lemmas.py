"""Turn inflected words into lemmas, letter by letter: GRU encoder and decoder with attention."""

import heapq
import os
import random
import time

import torch
from torch import nn

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PAD, BOS, EOS = 0, 1, 2
ENDINGS = ["ing", "ed", "s", "er", "est", "ly", "ness"]
FAST_DECODING = os.environ.get("REPAIRED") == "1"


def pairs(n, seed):
    rng = random.Random(seed)
    made = []
    for _ in range(n):
        lemma = "".join(rng.choices(LETTERS, k=rng.randint(4, 9)))
        made.append((lemma + rng.choice(ENDINGS), lemma))
    return made


def encode(words):
    rows = [[BOS, *(LETTERS.index(c) + 3 for c in w), EOS] for w in words]
    width = max(map(len, rows))
    return torch.tensor([r + [PAD] * (width - len(r)) for r in rows])


class Lemmatizer(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS) + 3, dim, padding_idx=PAD)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(2 * dim, len(LETTERS) + 3)

    def read(self, source):
        return self.encoder(self.letters(source))

    def write(self, target, memory, state):
        h, state = self.decoder(self.letters(target), state)
        weights = torch.softmax(h @ memory.transpose(1, 2) / 11.3, -1)
        return self.out(torch.cat([h, weights @ memory], -1)), state

    def forward(self, source, target):
        return self.write(target, *self.read(source))[0]


def beam_search(model, source, width=4, longest=12):
    memory, state = model.read(source)
    beams = [(0.0, [BOS], state)]
    for _ in range(longest):
        candidates = []
        for score, letters, state in beams:
            if letters[-1] == EOS:
                candidates.append((score, letters, state))
                continue
            logits, new = model.write(torch.tensor([[letters[-1]]]), memory, state)
            for p, k in zip(*torch.log_softmax(logits[0, -1], -1).topk(width)):
                candidates.append((score + p.item(), [*letters, k.item()], new))
        beams = heapq.nlargest(width, candidates, key=lambda c: c[0] / len(c[1]))
    return beams[0][1][1:]


def greedy(model, source, longest=12):
    memory, state = model.read(source)
    last, written = torch.full((len(source), 1), BOS), []
    for _ in range(longest):
        logits, state = model.write(last, memory, state)
        last = logits.argmax(-1)
        written.append(last)
    return torch.cat(written, 1).tolist()


@torch.no_grad()
def accuracy(model, held_out):
    model.eval()
    if FAST_DECODING:
        guesses = greedy(model, encode([word for word, _ in held_out]))
    else:
        guesses = [beam_search(model, encode([word])) for word, _ in held_out]
    model.train()
    wanted = [[LETTERS.index(c) + 3 for c in lemma] for _, lemma in held_out]
    return sum(g[: len(w)] == w for g, w in zip(guesses, wanted)) / len(wanted)


torch.manual_seed(2)
train, held_out = pairs(20_000, 0), pairs(64, 1)
model = Lemmatizer()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loss_fn = nn.CrossEntropyLoss(ignore_index=PAD)
started = time.time()
for step in range(1, 801):
    batch = random.choices(train, k=64)
    source, target = encode([word for word, _ in batch]), encode([lemma for _, lemma in batch])
    logits = model(source, target[:, :-1])
    loss = loss_fn(logits.flatten(0, 1), target[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"{step}: loss {loss.item():.3f}, accuracy {accuracy(model, held_out):.3f}")
print(f"training took {time.time() - started:.2f} s")
