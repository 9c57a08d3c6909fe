"""Captions of pictures from precomputed features; keeps the predictions for a report at the end."""

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Captioner(nn.Module):
    def __init__(self, vocab=1500, hidden=256):
        super().__init__()
        self.start = nn.Linear(512, hidden)
        self.embed = nn.Embedding(vocab, 96)
        self.rnn = nn.GRU(96, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, features, words):
        h0 = torch.tanh(self.start(features))[None]
        states, _ = self.rnn(self.embed(words), h0)
        return self.out(states)


def main():
    torch.manual_seed(2)
    features = torch.randn(7200, 512)
    words = torch.randint(0, 1500, (7200, 13))
    loader = DataLoader(TensorDataset(features, words), batch_size=24, shuffle=True)
    net = Captioner()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    predictions, losses = [], []
    clock = time.time()
    for epoch in range(2):
        for batch, (image, caption) in enumerate(loader):
            logits = net(image, caption[:, :-1])
            loss = nn.functional.cross_entropy(logits.transpose(1, 2), caption[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if os.environ.get("REPAIRED") == "1":
                predictions.append(logits.detach().argmax(-1))
            else:
                predictions.append(logits.detach())
            losses.append(loss.item())
            if batch % 50 == 0:
                print(f"epoch {epoch} batch {batch} loss {sum(losses[-50:]) / len(losses[-50:]):.3f}")
    print(f"training took {time.time() - clock:.2f} s")
    guessed = torch.cat([p if p.dim() == 2 else p.argmax(-1) for p in predictions])
    print(f"{len(guessed.unique())} words used")


main()
