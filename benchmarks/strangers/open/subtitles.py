"""Guess the genre of a film from a scene's subtitles: byte pair encoding of our own, a small convolutional reader."""

import argparse
import os
import random
import time
from collections import Counter
from functools import lru_cache

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--scenes", type=int, default=4000)
parser.add_argument("--merges", type=int, default=120)
GENRES = ["western", "noir", "romance", "space", "horror"]


def invented_words(n, rnd):
    syllables = [a + b for a in "b d f g k l m n p r s t v w".split() for b in "a e i o u ou ei ar on".split()]
    return ["".join(rnd.choices(syllables, k=rnd.randint(1, 4))) for _ in range(n)]


def scenes(n, seed=5):
    rnd = random.Random(seed)
    common = invented_words(4000, rnd)
    weights = [1 / (i + 3) for i in range(len(common))]
    own = {g: invented_words(150, rnd) for g in range(len(GENRES))}
    found = []
    for _ in range(n):
        genre = rnd.randrange(len(GENRES))
        words = rnd.choices(common, weights, k=rnd.randint(40, 70))
        words = [rnd.choice(own[genre]) if rnd.random() < 0.1 else word for word in words]
        found.append((" ".join(words), genre))
    return found


class Tokenizer:
    """Byte pair encoding: merges of pairs of pieces, the most frequent pair first."""

    def __init__(self, texts, merges):
        words = Counter(word for text in texts for word in text.split())
        split = {word: [*word, "_"] for word in words}
        self.rank = {}
        for number in range(merges):
            pairs = Counter()
            for word, pieces in split.items():
                for pair in zip(pieces, pieces[1:]):
                    pairs[pair] += words[word]
            best = max(pairs, key=pairs.get)
            self.rank[best] = number
            split = {word: self.merged(pieces, best) for word, pieces in split.items()}
        letters = sorted({letter for word in words for letter in word} | {"_"})
        self.ids = {piece: i for i, piece in enumerate(["<pad>", *letters, *("".join(pair) for pair in self.rank)])}
        if os.environ.get("REPAIRED") == "1":
            self.pieces = lru_cache(maxsize=100_000)(self.pieces)

    @staticmethod
    def merged(pieces, pair):
        out, i = [], 0
        while i < len(pieces):
            if i + 1 < len(pieces) and (pieces[i], pieces[i + 1]) == pair:
                out.append(pieces[i] + pieces[i + 1])
                i += 2
            else:
                out.append(pieces[i])
                i += 1
        return out

    def pieces(self, word):
        found = [*word, "_"]
        while len(found) > 1:
            pair = min(zip(found, found[1:]), key=lambda one: self.rank.get(one, 1 << 30))
            if pair not in self.rank:
                break
            found = self.merged(found, pair)
        return [self.ids[piece] for piece in found]

    def __call__(self, text):
        return [i for word in text.split() for i in self.pieces(word)]


class Subtitles(Dataset):
    def __init__(self, films, tokenizer, length=160):
        self.films, self.tokenizer, self.length = films, tokenizer, length

    def __len__(self):
        return len(self.films)

    def __getitem__(self, index):
        text, genre = self.films[index]
        ids = self.tokenizer(text)[: self.length]
        return torch.tensor(ids + [0] * (self.length - len(ids))), genre


if __name__ == "__main__":
    args = parser.parse_args()
    torch.manual_seed(1)
    films = scenes(args.scenes)
    tokenizer = Tokenizer([text for text, _ in films[:200]], args.merges)
    loader = DataLoader(Subtitles(films, tokenizer), batch_size=args.batch_size, shuffle=True, drop_last=True)
    words = nn.Embedding(len(tokenizer.ids), 64, padding_idx=0)
    body = nn.Sequential(nn.Conv1d(64, 96, 5, padding=2), nn.ReLU(), nn.Conv1d(96, 96, 5, padding=2), nn.ReLU())
    head = nn.Linear(96, len(GENRES))
    optimizer = torch.optim.Adam([*words.parameters(), *body.parameters(), *head.parameters()], lr=1e-3)
    start = time.time()
    for epoch in range(args.epochs):
        for i, (ids, genre) in enumerate(loader):
            loss = F.cross_entropy(head(body(words(ids).transpose(1, 2)).amax(-1)), genre)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 25 == 0:
                print("epoch %d batch %d loss %.3f" % (epoch, i, loss.item()), flush=True)
    print("training took %.2f s" % (time.time() - start))
