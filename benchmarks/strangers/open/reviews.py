"""Bag-of-embeddings classifier for film reviews."""

import os
import random
import re
import time
import unicodedata

import torch
from torch import nn
from torch.utils.data import DataLoader

REPAIRED = os.environ.get("REPAIRED") == "1"
TOKEN = re.compile(r"n't|'\w+|\w+|[^\w\s]")
URL = re.compile(r"https?://\S+|www\.\S+")
STOP = set("the a an and or of to in is it that this was for on with as".split())


def fake_review(r):
    words = ["Movie", "great", "didn't", "the", "actor's", "naïve", "plot", "of", "and", "boring", "http://a.io/x", "!!!"]
    return " ".join(r.choice(words) + str(r.randrange(300)) for _ in range(r.randrange(120, 260))) + "<br/>"


def tokenize(text):
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    text = URL.sub(" url ", text.lower()).replace("<br/>", " ")
    tokens = [t for t in TOKEN.findall(text) if t not in STOP]
    return tokens + [f"{a}_{b}" for a, b in zip(tokens, tokens[1:])]


class Collator:
    def __init__(self, buckets=20000):
        self.buckets = buckets
        self.known = {}

    def encode(self, text):
        return torch.tensor([hash(token) % self.buckets for token in tokenize(text)])

    def __call__(self, rows):
        encoded = []
        for text, _ in rows:
            if REPAIRED:
                if text not in self.known:
                    self.known[text] = self.encode(text)
                encoded.append(self.known[text])
            else:
                encoded.append(self.encode(text))
        offsets = torch.tensor([0] + [len(e) for e in encoded[:-1]]).cumsum(0)
        return torch.cat(encoded), offsets, torch.tensor([label for _, label in rows])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(20000, 16, mode="mean", sparse=True)
        self.mlp = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))

    def forward(self, tokens, offsets):
        return self.mlp(self.bag(tokens, offsets))


def main():
    r = random.Random(0)
    reviews = [(fake_review(r), r.randrange(2)) for _ in range(1600)]
    model = Classifier()
    sparse = torch.optim.SparseAdam(model.bag.parameters())
    dense = torch.optim.Adam(model.mlp.parameters())
    collator = Collator()
    if REPAIRED:
        collator(reviews)
    loader = DataLoader(reviews, batch_size=32, shuffle=True, collate_fn=collator)
    start = time.time()
    for epoch in range(16):
        for step, (tokens, offsets, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(tokens, offsets), labels)
            sparse.zero_grad()
            dense.zero_grad()
            loss.backward()
            sparse.step()
            dense.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
