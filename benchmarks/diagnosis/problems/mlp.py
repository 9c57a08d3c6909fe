"""Nothing wrong: a classifier on vectors in memory."""

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=200, width=512, batch=96)


def build(width):
    return nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 10),
    )  # fmt: skip


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(run.batch * run.steps, run.width), torch.randint(0, 10, (run.batch * run.steps,)))
    loader = DataLoader(data, batch_size=run.batch, shuffle=True)
    model = build(run.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    running = 0.0
    with run.training():
        for step, (inputs, labels) in enumerate(loader):  # LOOP
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            running += loss.detach()
            if step % 50 == 49:
                print(f"step {step + 1}: loss {running / 50:.3f}")
                running = 0.0
    run.close()


if __name__ == "__main__":
    main()
