"""Find defects on sheets of steel with Lightning; keeps an eye on the gradients."""

import json
import os
import time

import lightning.pytorch as pl
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

EVERY = 100 if os.environ.get("REPAIRED") == "1" else 1


class Steel(Dataset):
    """Grey sheets, half of them with a scratch."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.sheets = rng.normal(0, 1, (n, 1, 64, 64)).astype(np.float32)
        self.labels = rng.integers(0, 2, n)
        for sheet, label in zip(self.sheets, self.labels):
            row = rng.integers(0, 60)
            sheet[0, row : row + 3] += 2 * label

    def __len__(self):
        return len(self.sheets)

    def __getitem__(self, i):
        return self.sheets[i], self.labels[i]


class DefectFinder(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, stride=2)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2)
        self.conv3 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(64 * 36, 256)
        self.fc2 = nn.Linear(256, 2)
        self.gradients = open("gradients.jsonl", "w")

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(F.relu(self.conv3(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        if self.global_step % EVERY:
            return
        entry = {"step": self.global_step}
        for name, p in self.named_parameters():
            counts, edges = np.histogram(p.grad.numpy(), bins=64)
            entry[name] = {
                "norm": float(p.grad.norm()),
                "counts": counts.tolist(),
                "edges": edges.tolist(),
                "quantiles": np.quantile(p.grad.numpy(), [0.05, 0.5, 0.95]).tolist(),
            }
        self.gradients.write(json.dumps(entry) + "\n")

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_acc", (self(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


if __name__ == "__main__":
    pl.seed_everything(11)
    train = DataLoader(Steel(4800, 0), batch_size=32, shuffle=True)
    val = DataLoader(Steel(320, 1), batch_size=64)
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    t = time.time()
    trainer.fit(DefectFinder(), train, val)
    print(f"training took {time.time() - t:.2f} s")
    print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
