"""Sentiment of reviews with an LSTM on several processes: torchrun --nproc-per-node 2 train.py"""

import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

SORTED = os.environ.get("REPAIRED") == "1"


class Reviews(Dataset):
    """Most reviews are short, some are very long."""

    def __init__(self, n):
        r = random.Random(4)
        self.lengths = [min(400, max(8, int(r.lognormvariate(3.6, 1.0)))) for _ in range(n)]
        self.texts = [torch.randint(1, 8000, (length,)) for length in self.lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return self.texts[i], i % 2


class BatchesOfARank(Sampler):
    def __init__(self, lengths, batch, rank, world, seed):
        order = list(range(len(lengths)))
        random.Random(seed).shuffle(order)
        if SORTED:
            order.sort(key=lengths.__getitem__)
        each = batch * world
        groups = [order[k : k + each] for k in range(0, len(order) - each + 1, each)]
        random.Random(seed + 1).shuffle(groups)
        self.batches = [group[rank::world] for group in groups]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


def collate(batch):
    texts, labels = zip(*batch)
    return pad_sequence(texts, batch_first=True), torch.tensor(labels)


class Sentiment(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8000, 64, padding_idx=0)
        self.lstm = nn.LSTM(64, 96, batch_first=True)
        self.classify = nn.Linear(96, 2)

    def forward(self, words):
        outputs, _ = self.lstm(self.embedding(words))
        return self.classify(outputs.mean(1))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    reviews = Reviews(2560)
    model = DDP(Sentiment())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = time.time()
    for epoch in range(2):
        sampler = BatchesOfARank(reviews.lengths, 8, rank, world, seed=epoch)
        for n, (words, labels) in enumerate(DataLoader(reviews, batch_sampler=sampler, collate_fn=collate)):
            loss = nn.functional.cross_entropy(model(words), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and n % 50 == 0:
                print(f"epoch {epoch} batch {n} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    if rank == 0:
        print(f"training took {time.time() - start:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
