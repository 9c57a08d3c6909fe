"""A character-level LSTM, as in the famous blog post, that writes a little after each epoch."""

import argparse
import math
import time

import torch
from torch import nn

TEXT = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, "
    "it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of "
    "Darkness, it was the spring of hope, it was the winter of despair. "
) * 500
chars = sorted(set(TEXT))
index = {c: i for i, c in enumerate(chars)}


class CharLM(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.embed = nn.Embedding(len(chars), 32)
        self.lstm = nn.LSTM(32, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, len(chars))

    def forward(self, x, state=None):
        out, state = self.lstm(self.embed(x), state)
        return self.head(out), state


@torch.no_grad()
def sample(model, length=40):
    model.eval()
    x, state, text = torch.tensor([[index["I"]]]), None, "I"
    for _ in range(length):
        logits, state = model(x, state)
        x = torch.multinomial(logits[0, -1].softmax(-1), 1)[None]
        text += chars[x.item()]
    model.train()
    return text


ap = argparse.ArgumentParser()
ap.add_argument("--hidden", type=int, default=192)
ap.add_argument("--seq", type=int, default=50)
ap.add_argument("--batch", type=int, default=32)
ap.add_argument("--epochs", type=int, default=3)
args = ap.parse_args()

data = torch.tensor([index[c] for c in TEXT])
data = data[: len(data) // args.batch * args.batch].view(args.batch, -1)
model = CharLM(args.hidden)
optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
begin = time.time()
for epoch in range(args.epochs):
    state = None
    for n, i in enumerate(range(0, data.shape[1] - args.seq - 1, args.seq)):
        x, y = data[:, i : i + args.seq], data[:, i + 1 : i + args.seq + 1]
        logits, state = model(x, state)
        state = tuple(s.detach() for s in state)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5)
        optimizer.step()
        if n % 50 == 0:
            print(f"epoch {epoch} batch {n} perplexity {math.exp(loss.item()):.2f}")
    print("sample:", sample(model))
print(f"training took {time.time() - begin:.2f} s")
