"""Will a colony swarm within a week? Scales and thermometers of beehives, a dilated network, Lightning."""

import os
import time
from datetime import datetime
from pathlib import Path

import lightning as L
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HOURS, WINDOW, HIVES = 2000, 96, 40
SENSORS = ["weight", "inside", "outside", "humidity", "hum"]


def write_readings(path):
    """One line per hive and hour, as the gateway writes them."""
    rng = np.random.default_rng(2)
    when = pd.date_range("2023-04-01", periods=HOURS, freq="h")
    tables = []
    for hive in range(HIVES):
        swarm = rng.integers(HOURS // 3, HOURS)
        ahead = np.clip(1 - (swarm - np.arange(HOURS)) / 168, 0, 1) * (np.arange(HOURS) < swarm)
        day = np.sin(2 * np.pi * np.arange(HOURS) / 24)
        tables.append(pd.DataFrame({
            "time": when.strftime("%d.%m.%Y %H:%M"),
            "hive": f"hive-{hive:03d}",
            "weight": 30 + rng.normal(0, 0.05, HOURS).cumsum() - 2.0 * (np.arange(HOURS) > swarm),
            "inside": 34.5 + 0.2 * day + 0.8 * ahead + rng.normal(0, 0.2, HOURS),
            "outside": 14 + 6 * day + rng.normal(0, 1, HOURS),
            "humidity": 60 - 5 * day + rng.normal(0, 3, HOURS),
            "hum": 220 + 30 * ahead + rng.normal(0, 10, HOURS),
            "swarm": (ahead > 0).astype(int),
        }))
    pd.concat(tables).sample(frac=1, random_state=0).to_csv(path, index=False, sep=";", decimal=",")


class Hives(L.LightningDataModule):
    def __init__(self, path, batch):
        super().__init__()
        self.path, self.batch, self.table, self.epoch = path, batch, None, 0

    def read(self):
        table = pd.read_csv(self.path, sep=";", decimal=",")
        table["time"] = table["time"].map(lambda text: datetime.strptime(text, "%d.%m.%Y %H:%M"))
        table = table.sort_values(["hive", "time"])
        parts = []
        for _, hive in table.groupby("hive"):
            hive = hive.set_index("time")
            day = hive[SENSORS].rolling("24h").mean()
            parts.append(pd.concat([(hive[SENSORS] - day), day.diff().fillna(0), hive[["swarm"]]], axis=1).to_numpy(np.float32))
        return np.stack(parts)

    def train_dataloader(self):
        """Windows start at another hour in every epoch."""
        if self.table is None or os.environ.get("REPAIRED") != "1":
            self.table = self.read()
        rng = np.random.default_rng(self.epoch)
        self.epoch += 1
        x, y = [], []
        for hive in self.table:
            for start in rng.integers(0, HOURS - WINDOW, 16):
                x.append(hive[start : start + WINDOW, :-1].T)
                y.append(hive[start + WINDOW - 1, -1])
        return DataLoader(TensorDataset(torch.from_numpy(np.stack(x)), torch.tensor(y)), self.batch, shuffle=True)


class Swarming(L.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.first = nn.Conv1d(2 * len(SENSORS), width, 3, padding=1)
        self.dilated = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, padding=d, dilation=d) for d in (1, 2, 4, 8, 16))
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 1))

    def forward(self, x):
        h = self.first(x)
        for conv in self.dilated:
            h = h + F.glu(conv(h), dim=1)
        return self.head(torch.cat([h.mean(2), h.amax(2)], 1)).squeeze(1)

    def training_step(self, batch, index):
        x, y = batch
        loss = F.binary_cross_entropy_with_logits(self(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch}: {self.trainer.callback_metrics['loss']:.3f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def main():
    L.seed_everything(44, verbose=False)
    path = Path("readings.csv")
    write_readings(path)
    trainer = L.Trainer(max_epochs=11, accelerator="cpu", reload_dataloaders_every_n_epochs=1, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    begin = time.time()
    trainer.fit(Swarming(), datamodule=Hives(path, 32))
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
