"""Small training script for the launch examples; it does not import sm-profiler."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    options, _ = parser.parse_known_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = TensorDataset(torch.randn(options.steps * 16, 64), torch.randint(0, 10, (options.steps * 16,)))
    for images, labels in DataLoader(data, batch_size=16):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    print(f"loss: {loss.item():.4f}")


if __name__ == "__main__":
    main()
