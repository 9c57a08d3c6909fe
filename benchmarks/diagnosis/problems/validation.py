"""The whole validation set, every few steps."""

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=160, every=40, batches=80, width=448, batch=64)


def dataset(count):
    return TensorDataset(torch.randn(count, run.width), torch.randint(0, 10, (count,)))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)  # GUILTY
    model.train()
    return right / len(loader.dataset)


def train():
    model = nn.Sequential(nn.Linear(run.width, 900), nn.ReLU(), nn.Linear(900, 900), nn.ReLU(), nn.Linear(900, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train_loader = DataLoader(dataset(run.steps * run.batch), run.batch, shuffle=True)
    batches = 2 if run.repaired else run.batches
    val_loader = DataLoader(dataset(batches * run.batch), run.batch)
    with run.training():
        for step, (x, y) in enumerate(train_loader, 1):  # LOOP
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if step % run.every == 0:
                with run.spends("evaluating"):
                    accuracy = validate(model, val_loader)
                print(f"{step}: {accuracy:.1%}")
    run.close()


train()
