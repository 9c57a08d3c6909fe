"""Each sample comes from a slow source, in the training process."""

import time

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

run = Run(steps=150, share=0.5, width=448, batch=16)


class Records(Dataset):
    def __init__(self, size, width, delay):
        self.size, self.delay = size, delay
        self.values = torch.randn(128, width)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        with run.spends("loading"):
            if self.delay:
                time.sleep(self.delay)  # GUILTY: a query for every sample
        return self.values[index % 128], float(index % 2)


def train():
    loader = DataLoader(Records(run.steps * run.batch, run.width, run.pause() / run.batch), batch_size=run.batch)
    model = nn.Sequential(nn.Linear(run.width, 4 * run.width), nn.GELU(), nn.Linear(4 * run.width, 1))
    optimizer = torch.optim.Adam(model.parameters())
    with run.training():
        for features, target in loader:  # LOOP
            prediction = model(features).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(prediction, target.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    run.close()


train()
