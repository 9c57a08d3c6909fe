"""To which craft does an entry of a glossary belong? Pairs of letters as tokens, merged as often as they occur together.
The glossary may be edited meanwhile, so every epoch starts with a new loader. PyTorch Lightning.
"""

import os
import random
import time
from collections import Counter
from functools import lru_cache

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

CRAFTS = "cooper smith weaver tanner mason miller glazier".split()
LENGTH, MERGES = 48, 300


def entries(count, seed):
    rng = random.Random(seed)
    stems = [random.Random(craft).sample([a + b + c for a in "bcdfglmprst" for b in "aeiou" for c in "lmnrst"], 25)
             for craft in CRAFTS]  # fmt: skip
    common = ["the", "a", "of", "for", "made", "with", "wood", "tool", "used", "by", "hand", "see"]
    made = []
    for _ in range(count):
        craft = rng.randrange(len(CRAFTS))
        words = [rng.choice(stems[craft]) + "".join(rng.choice(stems[rng.randrange(len(CRAFTS))]) for _ in range(3))
                 if rng.random() < 0.5 else rng.choice(common) for _ in range(rng.randint(18, 30))]  # fmt: skip
        made.append((" ".join(words), craft))
    return made


class Pairs:
    """Byte pair encoding, as in the paper."""

    def __init__(self, texts, merges):
        words = Counter(word for text in texts for word in text.split())
        parts = {word: tuple(word) + ("_",) for word in words}
        self.ranks = {}
        for rank in range(merges):
            pairs = Counter()
            for word, part in parts.items():
                for pair in zip(part, part[1:]):
                    pairs[pair] += words[word]
            best = max(pairs, key=pairs.get)
            self.ranks[best] = rank
            parts = {word: self.merged(part, best) for word, part in parts.items()}
        self.ids = {}

    @staticmethod
    def merged(part, pair):
        result = []
        for piece in part:
            if result and (result[-1], piece) == pair:
                result[-1] += piece
            else:
                result.append(piece)
        return tuple(result)

    def word(self, word):
        part = tuple(word) + ("_",)
        while True:
            known = [pair for pair in zip(part, part[1:]) if pair in self.ranks]
            if not known:
                return [self.ids.setdefault(piece, 1 + len(self.ids)) for piece in part]
            part = self.merged(part, min(known, key=self.ranks.get))

    def encode(self, text):
        ids = [i for word in text.split() for i in self.word(word)][:LENGTH]
        return ids + [0] * (LENGTH - len(ids))


class Reader(pl.LightningModule):
    def __init__(self, made, pairs, width=64):
        super().__init__()
        self.made, self.pairs = made, pairs
        self.encode = lru_cache(None)(pairs.encode) if os.environ.get("REPAIRED") == "1" else pairs.encode
        self.pieces, self.place = nn.Embedding(2000, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(CRAFTS))

    def train_dataloader(self):
        rows = [(torch.tensor(self.encode(text)), craft) for text, craft in self.made]
        return DataLoader(rows, batch_size=32, shuffle=True, drop_last=True)

    def training_step(self, batch, _):
        pieces, craft = batch
        logits = self.head(self.body(self.pieces(pieces) + self.place.weight).mean(1))
        self.log("right", (logits.argmax(1) == craft).float().mean(), on_step=False, on_epoch=True)
        return nn.functional.cross_entropy(logits, craft)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3, fused=True)


if __name__ == "__main__":
    pl.seed_everything(3, verbose=False)
    made = entries(900, 1)
    reader = Reader(made, Pairs([text for text, _ in made[:40]], MERGES))
    trainer = pl.Trainer(max_epochs=12, accelerator="cpu", reload_dataloaders_every_n_epochs=1, logger=False,
                         enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    begin = time.time()
    trainer.fit(reader)
    print(f"training took {time.time() - begin:.2f} s, right {trainer.callback_metrics['right']:.3f}")
