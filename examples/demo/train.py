"""Train a small convolutional network; this script does not use the profiler.

It has one problem for the demo's report to find: images are decoded and augmented in the training process (num_workers is
0), so the training loop waits for every batch.
"""

import argparse
import json
import os
import random

import torch
from photos import CLASSES, FILES, jpeg_file, load
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    """Photos with their classes, decoded and augmented whenever they are read."""

    def __init__(self, size: int):
        self.size = size
        self.files = [jpeg_file(number) for number in range(FILES)]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int):
        pixels = torch.from_numpy(load(self.files[index % FILES])).permute(2, 0, 1)
        return pixels / 255 - 0.5, index % FILES % CLASSES


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 8 * 8, CLASSES),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--images", type=int, default=6400)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate)
    criterion = nn.CrossEntropyLoss()
    data = Photos(options.images)
    loader = DataLoader(data, batch_size=options.batch_size, shuffle=True, num_workers=options.workers)

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
