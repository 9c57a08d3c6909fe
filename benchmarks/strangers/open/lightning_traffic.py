"""Traffic of a city district by district, with a GRU in Lightning."""

import time

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Traffic(Dataset):
    def __init__(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        self.series = torch.rand(n + 36, 48, generator=generator).cumsum(0) % 1
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.series[i : i + 36], self.series[i + 36 - 1]


class TrafficData(pl.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Traffic(9600, 0), batch_size=48, shuffle=True)

    def val_dataloader(self):
        return DataLoader(Traffic(960, 1), batch_size=96)


class Model(pl.LightningModule):
    def __init__(self, hidden=160):
        super().__init__()
        self.save_hyperparameters()
        self.rnn = nn.GRU(48, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, 48)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(h[:, -1])

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.huber_loss(self(x), y)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val/loss", nn.functional.huber_loss(self(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)]


pl.seed_everything(7)
trainer = pl.Trainer(
    max_epochs=2,
    accelerator="cpu",
    log_every_n_steps=50,
    logger=CSVLogger("logs"),
    callbacks=[LearningRateMonitor(), ModelCheckpoint("best", monitor="val/loss")],
    enable_progress_bar=False,
    enable_model_summary=False,
)
start = time.time()
trainer.fit(Model(), TrafficData())
print(f"training took {time.time() - start:.2f} s")
