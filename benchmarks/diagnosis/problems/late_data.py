"""Two ranks, one of which reads its shard from a slower disk."""

import time

import torch
from bench import Run
from ranks import launch
from torch import nn
from torch.utils.data import DataLoader, Dataset

run = Run(steps=120, share=0.45, slow=0, width=700, batch=16)


class Shard(Dataset):
    def __init__(self, count, width, delay):
        self.count, self.delay, self.rows = count, delay, torch.randn(50, width)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.delay:
            with run.spends("late"):
                time.sleep(self.delay)  # GUILTY
        return self.rows[index % 50], index % 6


def worker(rank):
    torch.manual_seed(rank)
    delay = run.pause() / run.batch if rank == run.slow else 0.0
    loader = DataLoader(Shard(run.steps * run.batch, run.width, delay), batch_size=run.batch)
    net = nn.Sequential(nn.Linear(run.width, 900), nn.GELU(), nn.Linear(900, 6))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with run.training():
        for x, y in loader:  # LOOP
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    if rank == run.slow:
        run.close(rank=rank)


if __name__ == "__main__":
    launch(worker)
