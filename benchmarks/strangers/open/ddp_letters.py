"""Who wrote this letter? A bidirectional LSTM reads historical letters, two processes that this script starts itself."""

import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

WORLD, AUTHORS, WORDS = 2, 12, 4000
INTERLEAVED = os.environ.get("REPAIRED") == "1"


def letters(n=1400):
    """Letters of 15 to 240 words; an author prefers a part of the words. From short to long, so that little is padded."""
    g = torch.Generator().manual_seed(0)
    favourite = torch.randint(1, WORDS, (AUTHORS, 200), generator=g)
    out = []
    for _ in range(n):
        author = int(torch.randint(AUTHORS, (), generator=g))
        length = int(15 + 225 * torch.rand((), generator=g) ** 2)
        common = torch.randint(1, WORDS, (length,), generator=g)
        own = favourite[author][torch.randint(200, (length,), generator=g)]
        out.append((torch.where(torch.rand(length, generator=g) < 0.3, own, common), author))
    return sorted(out, key=lambda pair: len(pair[0]))


class Shard:
    """The batches of one process, in another order every epoch."""

    def __init__(self, data, rank, batch=20):
        if INTERLEAVED:
            mine = data[rank::WORLD]
        else:
            share = len(data) // WORLD
            mine = data[rank * share : (rank + 1) * share]
        self.batches = [mine[i : i + batch] for i in range(0, len(mine) - batch + 1, batch)]

    def __len__(self):
        return len(self.batches)

    def epoch(self, number):
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(number))
        for i in order.tolist():
            words, authors = zip(*self.batches[i])
            yield pad_sequence(words, batch_first=True), torch.tensor(authors)


class Reader(nn.Module):
    def __init__(self, size=64):
        super().__init__()
        self.words = nn.Embedding(WORDS, size, padding_idx=0)
        self.lstm = nn.LSTM(size, size, batch_first=True, bidirectional=True)
        self.author = nn.Linear(2 * size, AUTHORS)

    def forward(self, x):
        h, _ = self.lstm(self.words(x))
        return self.author(h.masked_fill((x == 0)[..., None], -9).amax(1))


def train(rank, epochs=6):
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.manual_seed(15)
    shard = Shard(letters(), rank)
    ddp = DistributedDataParallel(Reader())
    optimizer = torch.optim.Adam(ddp.parameters(), lr=2e-3)
    dist.barrier()
    start = time.time()
    for number in range(epochs):
        right = torch.zeros(2)
        for words, authors in shard.epoch(number):
            optimizer.zero_grad()
            logits = ddp(words)
            nn.functional.cross_entropy(logits, authors).backward()
            optimizer.step()
            right += torch.stack([(logits.argmax(1) == authors).sum(), torch.tensor(len(authors))])
        dist.all_reduce(right)
        if rank == 0:
            print(f"epoch {number}: {right[0] / right[1]:.1%} recognised", flush=True)
    if rank == 0:
        print(f"training took {time.time() - start:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun has started the processes
        train(int(os.environ["RANK"]))
    else:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000)}
        mp.spawn(train, nprocs=WORLD)
