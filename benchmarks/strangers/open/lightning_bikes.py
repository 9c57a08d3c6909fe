"""Number of bikes at a station in an hour: Lightning, a table of counts, an embedding for each station and hour."""

import os
import time

import lightning as L
import numpy as np
import pandas as pd
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset

REPAIRED = os.environ.get("REPAIRED") == "1"
STATIONS, HOURS, PAST = 400, 24 * 14, 24


def make_counts():
    rng = np.random.default_rng(6)
    station, hour = np.divmod(np.arange(STATIONS * HOURS), HOURS)
    bikes = 10 + 6 * np.sin(hour / 24 * 2 * np.pi + station) + rng.normal(0, 1, len(hour))
    return pd.DataFrame({"station": station, "hour": hour, "bikes": bikes, "rain": rng.random(len(hour))})


class BikeDataset(Dataset):
    def __init__(self, counts, size):
        self.counts, self.size = counts, size
        self.rng = np.random.default_rng(1)
        self.arrays = counts[["bikes", "rain"]].to_numpy(np.float32).reshape(STATIONS, HOURS, 2)

    def __len__(self):
        return self.size

    def history(self, station, end):
        if REPAIRED:
            return self.arrays[station, end - PAST : end + 1]
        rows = self.counts[(self.counts["station"] == station) & self.counts["hour"].between(end - PAST, end)]
        return rows.sort_values("hour")[["bikes", "rain"]].to_numpy(np.float32)

    def __getitem__(self, index):
        station, end = int(self.rng.integers(STATIONS)), int(self.rng.integers(PAST, HOURS))
        table = self.history(station, end)
        return torch.from_numpy(table[:-1].copy()), station * HOURS + end, table[-1, 0]


class BikeModel(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.where_and_when = nn.Embedding(STATIONS * HOURS, 24)
        self.past = nn.LSTM(2, 128, batch_first=True)
        self.head = nn.Sequential(nn.Linear(128 + 24, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, past, key):
        h, _ = self.past(past)
        return self.head(torch.cat([h[:, -1], self.where_and_when(key)], 1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        past, key, bikes = batch
        loss = nn.functional.huber_loss(self(past, key), bikes)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main():
    L.seed_everything(3, verbose=False)
    loader = DataLoader(BikeDataset(make_counts(), size=32 * 250), batch_size=32)
    checkpoint = ModelCheckpoint(dirpath="checkpoints", every_n_train_steps=125 if REPAIRED else 5)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        callbacks=[checkpoint],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    start = time.monotonic()
    trainer.fit(BikeModel(), loader)
    print(f"training took {time.monotonic() - start:.2f} s")


if __name__ == "__main__":
    main()
