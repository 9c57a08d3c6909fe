"""Which party does a speech in parliament come from? Speeches of two lines to two hours. torchrun --nproc-per-node 2 train.py"""

import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

WORDS, PARTIES, BATCH = 3000, 6, 16


def speeches(n):
    g = torch.Generator().manual_seed(31)
    lengths = (30 * torch.exp(0.9 * torch.randn(n, generator=g))).long().clamp(6, 220)
    party = torch.randint(0, PARTIES, (n,), generator=g)
    favourite = torch.randint(1, WORDS, (PARTIES, 60), generator=g)
    texts = []
    for length, p in zip(lengths.tolist(), party.tolist()):
        words = torch.randint(1, WORDS, (length,), generator=g)
        own = torch.rand(length, generator=g) < 0.15
        words[own] = favourite[p, torch.randint(0, 60, (int(own.sum()),), generator=g)]
        texts.append(words)
    return texts, party


class LengthBatches:
    """Batches of speeches of about the same length, so that little is padded; each process has its share."""

    def __init__(self, lengths, rank, world):
        by_length = torch.tensor(lengths).argsort().tolist()
        batches = [by_length[i : i + BATCH] for i in range(0, len(by_length), BATCH)]
        share = len(batches) // world
        if os.environ.get("REPAIRED") == "1":
            self.batches = batches[rank::world][:share]
        else:
            self.batches = batches[rank * share : (rank + 1) * share]

    def shuffled(self, epoch):
        order = torch.randperm(len(self.batches), generator=torch.Generator().manual_seed(epoch))
        return [self.batches[i] for i in order]


class Reader(nn.Module):
    def __init__(self, d=112):
        super().__init__()
        self.words = nn.Embedding(WORDS, d, padding_idx=0)
        layer = nn.TransformerEncoderLayer(d, 4, 3 * d, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(d, PARTIES)

    def forward(self, ids):
        empty = ids == 0
        h = self.encoder(self.words(ids), src_key_padding_mask=empty)
        return self.head(h.masked_fill(empty[..., None], 0).sum(1) / (~empty).sum(1, keepdim=True))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(108)
    texts, party = speeches(1536)
    sampler = LengthBatches([len(text) for text in texts], rank, world)
    model = DistributedDataParallel(Reader())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    begin = time.time()
    for epoch in range(4):
        total = 0.0
        for rows in sampler.shuffled(epoch):
            ids = pad_sequence([texts[i] for i in rows], batch_first=True)
            loss = F.cross_entropy(model(ids), party[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        mean = torch.tensor(total / len(sampler.batches))
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: {mean.item() / world:.3f}", flush=True)
    if rank == 0:
        print(f"training took {time.time() - begin:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
