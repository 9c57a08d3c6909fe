"""Now and then a sequence that is many times longer: forward and backward pass grow together."""

import random

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

run = Run(steps=250, rare=0.025, times=12, width=96, batch=8)
choice = random.Random(5)


class Speech(Dataset):
    def __init__(self, count, usual, long):
        self.lengths = [usual] * count
        for index in choice.sample(range(15, count), max(int(count * run.rare), 4)):
            self.lengths[index] = usual if run.repaired else long

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.zeros(run.batch, self.lengths[index], run.width).normal_(), index % 2


class Recognizer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, 2)

    def forward(self, frames):
        hidden, _ = self.rnn(frames)  # GUILTY
        return self.out(hidden[:, -1])


model = Recognizer(run.width)
optimizer = torch.optim.Adam(model.parameters())
with run.training():
    for frames, label in DataLoader(Speech(run.steps, 24, 24 * run.times), batch_size=None):  # LOOP
        with run.spends("usual" if frames.shape[1] == 24 else "long"):
            loss = nn.functional.cross_entropy(model(frames), torch.full((run.batch,), label))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
run.close()
