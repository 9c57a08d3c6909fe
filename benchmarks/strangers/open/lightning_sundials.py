"""Which latitude was a sundial made for? Hour lines as the museum's records describe them, a set network, Lightning.

The machine in the museum has little memory: what is not needed any more is given back after each batch.
"""

import gc
import math
import os
import random
import time

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LINES = 13


def record(rnd, number):
    latitude = rnd.uniform(35, 65)
    lines = []
    for k, hour in enumerate(range(6, 19)):
        angle = math.degrees(math.atan(math.sin(math.radians(latitude)) * math.tan(math.radians(14.9 * (hour - 12)))))
        lines.append({"hour": hour, "angle": angle + rnd.gauss(0, 1.5), "length": rnd.uniform(0.5, 1.0),
                      "cut": {"depth": rnd.uniform(0.1, 0.6), "by": ["chisel", "saw"][rnd.random() < 0.3]}, "at": [k, 0]})
    return {"id": number, "latitude": latitude, "lines": lines, "owners": [f"owner {rnd.randrange(99)}" for _ in range(3)]}


class Sundials(Dataset):
    def __init__(self, count):
        rnd = random.Random(53)
        self.records = [record(rnd, number) for number in range(count)]

    def __len__(self):
        return len(self.records)

    def __getitem__(self, i):
        one = self.records[i]
        rows = [(line["angle"] / 90, line["hour"] / 12 - 1, line["length"], line["cut"]["depth"]) for line in one["lines"]]
        return torch.tensor(rows), (one["latitude"] - 50) / 15


class GiveBack(pl.Callback):
    def __init__(self, every):
        self.every = every

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx % self.every == 0:
            gc.collect()


class Latitude(pl.LightningModule):
    def __init__(self, width=128, heads=4):
        super().__init__()
        self.first = nn.Linear(4, width)
        block = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 3)
        self.last = nn.Linear(width, 1)

    def training_step(self, batch, batch_idx):
        x, latitude = batch
        found = self.last(self.blocks(self.first(x)).mean(1)).squeeze(1)
        loss = nn.functional.mse_loss(found, latitude.float())
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-4)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)]


if __name__ == "__main__":
    pl.seed_everything(53, verbose=False)
    loader = DataLoader(Sundials(2000), batch_size=64, shuffle=True)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[GiveBack(every=50 if os.environ.get("REPAIRED") == "1" else 1)],
    )
    start = time.time()
    trainer.fit(Latitude(), loader)
    print(f"loss {trainer.callback_metrics['loss']:.4f}")
    print(f"training took {time.time() - start:.2f} s")
