"""Clean up what was typed on an old typewriter: which keys were hit by mistake? A GRU tagger, batches made ahead."""

import os
import queue
import random
import string
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

ROWS = ["qwertyuiop", "asdfghjkl", "zxcvbnm"]
BESIDE = {
    key: [o for dy in (-1, 0, 1) if 0 <= y + dy < 3 for o in ROWS[y + dy][max(0, x - 1) : x + 2] if o != key]
    for y, row in enumerate(ROWS)
    for x, key in enumerate(row)
}
WORDS = "the ribbon carriage paper margin letter office clerk invoice yours enclosed please find regarding".split()
LETTERS = {c: i + 1 for i, c in enumerate(string.ascii_lowercase + " ")}
LENGTH, BATCH, STEPS = 80, 24, 150


def typed(rnd, text):
    out = []
    for c in text:
        chance = rnd.random()
        if chance < 0.06 and c in BESIDE:
            out.append(rnd.choice(BESIDE[c]))
        elif chance < 0.09:
            out.append(c + c)
        elif chance > 0.12:
            out.append(c)
    return "".join(out)


def aligned(paper, meant):
    """For each letter on the paper: 0 if it was meant, 1 if it should be another one, 2 if it should not be there."""
    table = [list(range(len(meant) + 1))]
    for i, a in enumerate(paper, 1):
        row, above = [i], table[-1]
        for j, b in enumerate(meant, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b)))
        table.append(row)
    labels, i, j = [0] * len(paper), len(paper), len(meant)
    while i > 0:
        if j > 0 and table[i][j] == table[i - 1][j - 1] + (paper[i - 1] != meant[j - 1]):
            i, j = i - 1, j - 1
            labels[i] = int(paper[i] != meant[j])
        elif table[i][j] == table[i - 1][j] + 1:
            i -= 1
            labels[i] = 2
        else:
            j -= 1
    return labels


class Sheets(IterableDataset):
    """Endless batches of lines with the mistakes marked."""

    def __iter__(self):
        rnd = random.Random(1911)
        while True:
            ids, labels = torch.zeros(BATCH, LENGTH, dtype=torch.long), torch.full((BATCH, LENGTH), -100)
            for row in range(BATCH):
                meant = " ".join(rnd.choices(WORDS, k=14))[:LENGTH]
                paper = typed(rnd, meant)[:LENGTH]
                ids[row, : len(paper)] = torch.tensor([LETTERS[c] for c in paper])
                labels[row, : len(paper)] = torch.tensor(aligned(paper, meant))
            yield ids, labels


def ahead(batches, depth=4):
    if os.environ.get("REPAIRED") == "1":
        yield from DataLoader(batches, batch_size=None, num_workers=1, prefetch_factor=depth)
    ready = queue.Queue(depth)

    def fill():
        for batch in batches:
            ready.put(batch)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield ready.get()


class Tagger(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS) + 1, width, padding_idx=0)
        self.gru = nn.GRU(width, width, 1, batch_first=True, bidirectional=True)
        self.out = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 3))

    def forward(self, ids):
        return self.out(self.gru(self.letters(ids))[0])


torch.manual_seed(3)
tagger = Tagger()
optimizer = torch.optim.Adam(tagger.parameters(), 2e-3)
weight = torch.tensor([1.0, 4.0, 4.0])
start = time.perf_counter()
for step, (ids, labels) in zip(range(1, STEPS + 1), ahead(Sheets())):
    loss = nn.functional.cross_entropy(tagger(ids).flatten(0, 1), labels.flatten(), weight, ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(f"step {step}: {loss.item():.4f}", flush=True)
print(f"training took {time.perf_counter() - start:.2f} s")
