"""Something that comes back every N steps and saves nothing: hard examples are ranked anew."""

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=180, share=0.3, every=25, width=448, batch=64)


class Miner:
    def __init__(self, pool):
        self.pool, self.hard = pool, torch.zeros(0, dtype=torch.long)

    def rank(self):
        distances = torch.cdist(self.pool, self.pool)  # GUILTY
        self.hard = distances.mean(1).argsort(descending=True)[:64]

    def refresh(self, rounds):
        for _ in range(rounds):
            self.rank()  # GUILTY


count = run.steps * run.batch
inputs, labels = torch.randn(count, run.width), torch.randint(0, 20, (count,))
miner = Miner(inputs[:300])
rounds = run.rounds(miner.rank, every=run.every)
model = nn.Sequential(nn.Linear(run.width, 1000), nn.ReLU(), nn.Linear(1000, 20))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, nesterov=True, momentum=0.9)
with run.training():
    for number, (x, y) in enumerate(DataLoader(TensorDataset(inputs, labels), run.batch), start=1):  # LOOP
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if number % run.every == 0:
            with run.spends("mining"):
                miner.refresh(rounds)
run.close()
