"""Tag the words of sentences with a recurrent network written by hand."""

import os
import time

import torch
from torch import nn

WORDS, TAGS, LENGTH, HIDDEN = 5000, 17, 40, 48
SENTENCES = 11200
BATCH = 64 if os.environ.get("REPAIRED") == "1" else 8


class MyGRU(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Linear(inputs + hidden, 2 * hidden)
        self.candidate = nn.Linear(inputs + hidden, hidden)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.hidden)
        outputs = []
        for t in range(x.shape[1]):
            both = torch.cat([x[:, t], h], dim=1)
            z, r = torch.sigmoid(self.gates(both)).chunk(2, dim=1)
            new = torch.tanh(self.candidate(torch.cat([x[:, t], r * h], dim=1)))
            h = (1 - z) * h + z * new
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 32)
        self.rnn = MyGRU(32, HIDDEN)
        self.out = nn.Linear(HIDDEN, TAGS)

    def forward(self, words):
        return self.out(self.rnn(self.embed(words)))


def batches(n):
    generator = torch.Generator().manual_seed(11)
    for _ in range(n):
        words = torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)
        yield words, words % TAGS


tagger = Tagger()
optimizer = torch.optim.Adam(tagger.parameters(), lr=3e-3)
tic = time.time()
for i, (words, tags) in enumerate(batches(SENTENCES // BATCH)):
    optimizer.zero_grad()
    logits = tagger(words)
    loss = nn.functional.cross_entropy(logits.reshape(-1, TAGS), tags.reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(tagger.parameters(), 5.0)
    optimizer.step()
    if i % 100 == 0:
        print(i, float(loss))
print(f"training took {time.time() - tic:.2f} s")
