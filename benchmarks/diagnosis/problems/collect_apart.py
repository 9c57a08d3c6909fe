"""Two ranks that collect garbage at different steps, so each waits for the other's collections, too."""

import gc
import time

import torch
from bench import Run
from ranks import launch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=140, share=0.3, width=256, batch=64, objects=120_000)


def train(rank):
    vocabulary = [{"word": str(i), "ids": [i]} for i in range(run.objects)]
    net = nn.Sequential(nn.Linear(run.width, 700), nn.ReLU(), nn.Linear(700, 10))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gc.collect()
    start = time.perf_counter()
    gc.collect()
    once = time.perf_counter() - start
    every = 0 if run.repaired else max(round(2 * once / run.pause() / 2) * 2, 2)
    count = run.steps * run.batch
    data = TensorDataset(torch.randn(count, run.width), torch.randint(0, 10, (count,)))
    with run.training():
        for step, (x, y) in enumerate(DataLoader(data, run.batch)):  # LOOP
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if every and step % every == rank * every // 2:
                with run.spends("collecting"):
                    gc.collect()  # GUILTY
    if rank == 0:
        run.close(words=len(vocabulary), every=every)


if __name__ == "__main__":
    launch(train)
