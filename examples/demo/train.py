"""Train a small convolutional network; this script does not use the profiler.

It has one problem for the demo's report to find: the dataset is slow and num_workers is 0, so the training loop waits for
every batch.
"""

import argparse
import json
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SlowImages(Dataset):
    """Random images, as slow to load as files from a cold disk."""

    def __init__(self, size: int, seconds_an_image: float):
        self.size, self.seconds_an_image = size, seconds_an_image

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int):
        time.sleep(self.seconds_an_image)
        generator = torch.Generator().manual_seed(index)
        label = index % 10
        return torch.randn(1, 28, 28, generator=generator) + label / 5, label


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--images", type=int, default=9600)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--seconds-an-image", type=float, default=0.003)
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate)
    criterion = nn.CrossEntropyLoss()
    data = SlowImages(options.images, options.seconds_an_image)
    loader = DataLoader(data, batch_size=options.batch_size, shuffle=True, num_workers=0)

    for epoch in range(options.epochs):
        for step, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} of {len(loader)} loss: {loss.item():.4f}", flush=True)

    model_folder = os.environ.get("SM_MODEL_DIR", ".")
    torch.save(model.state_dict(), os.path.join(model_folder, "model.pt"))
    with open(os.path.join(os.environ.get("SM_OUTPUT_DATA_DIR", "."), "result.json"), "w") as file:
        json.dump({"final_loss": loss.item()}, file)


if __name__ == "__main__":
    main()
