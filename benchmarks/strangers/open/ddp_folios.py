"""In which century was a folio written? Abbreviations of scribes as features, two processes: torchrun --nproc-per-node 2 train.py"""

import json
import os
import random
import time
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LETTERS = "abcdefghiklmnopqrstuvxyz"
CENTURIES = 8


def transcripts(n, seed):
    """Scribes of each century prefer some syllables."""
    source = random.Random(0)
    syllables = ["".join(source.choices(LETTERS, k=source.choice([2, 2, 3]))) for _ in range(500)]
    taste = [[source.random() ** 6 for _ in syllables] for _ in range(CENTURIES)]
    rng = random.Random(seed)
    for _ in range(n):
        century = rng.randrange(CENTURIES)
        yield "".join(rng.choices(syllables, taste[century], k=rng.randint(100, 160))), century


def grams(text):
    return [text[i : i + n] for n in (3, 4) for i in range(len(text) - n + 1)]


def build_vocabulary(texts, size, path):
    """Frequent groups of letters, each with its inverse document frequency."""
    count = Counter()
    for text in texts:
        count.update(grams(text))
    frequent = [gram for gram, _ in count.most_common(size)]
    if os.environ.get("REPAIRED") == "1":
        wanted, documents = set(frequent), Counter()
        for text in texts:
            documents.update(wanted.intersection(grams(text)))
    else:
        documents = {gram: sum(gram in text for text in texts) for gram in frequent}
    entries = {gram: [i, len(texts) / documents[gram]] for i, gram in enumerate(frequent)}
    with open(path, "w") as file:
        json.dump(entries, file)


class Dater(nn.Module):
    def __init__(self, words, width=384):
        super().__init__()
        self.bag = nn.EmbeddingBag(words, 64, mode="sum")
        self.norm = nn.LayerNorm(64)
        self.mlp = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, CENTURIES))

    def forward(self, ids, offsets, weights):
        return self.mlp(self.norm(self.bag(ids, offsets, per_sample_weights=weights)))


def encode(text, vocabulary):
    """Term frequency times inverse document frequency."""
    found = Counter(gram for gram in grams(text) if gram in vocabulary)
    ids = torch.tensor([vocabulary[gram][0] for gram in found])
    return ids, torch.tensor([n * vocabulary[gram][1] for gram, n in found.items()]).log1p()


def main(size=3500, batch=64, epochs=14):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folios = list(transcripts(6000, 1))
    if rank == 0:
        build_vocabulary([text for text, _ in folios], size, "vocabulary.json")
    dist.barrier()
    with open("vocabulary.json") as file:
        vocabulary = json.load(file)
    mine = [(*encode(text, vocabulary), century) for text, century in folios[rank::world]]

    torch.manual_seed(3)
    model = DistributedDataParallel(Dater(len(vocabulary)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rng = random.Random(rank)
    began = time.time()
    for epoch in range(epochs):
        rng.shuffle(mine)
        hits = 0
        for i in range(0, len(mine) - batch + 1, batch):
            ids, weights, centuries = zip(*mine[i : i + batch])
            offsets = torch.tensor([0, *(len(each) for each in ids[:-1])]).cumsum(0)
            logits = model(torch.cat(ids), offsets, torch.cat(weights))
            centuries = torch.tensor(centuries)
            loss = nn.functional.cross_entropy(logits, centuries)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += (logits.argmax(1) == centuries).sum()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {hits / (len(mine) // batch * batch):.3f}", flush=True)
    if rank == 0:
        print(f"training took {time.time() - began:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
