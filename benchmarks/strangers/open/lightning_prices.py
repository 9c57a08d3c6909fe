"""House prices from a table, with Lightning."""

import time

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Prices(L.LightningModule):
    def __init__(self, columns=40, width=384):
        super().__init__()
        self.save_hyperparameters()
        blocks = [nn.Linear(columns, width)]
        for _ in range(4):
            blocks += [nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width), nn.Dropout(0.1)]
        self.net = nn.Sequential(*blocks, nn.Linear(width, 1))

    def training_step(self, batch, index):
        x, price = batch
        loss = nn.functional.huber_loss(self.net(x).squeeze(1), price)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        x, price = batch
        self.log("val_mae", (self.net(x).squeeze(1) - price).abs().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)]


class Houses(L.LightningDataModule):
    def setup(self, stage):
        x = torch.randn(14_000, 40)
        price = x[:, :6].sum(1) + x[:, 6] * x[:, 7]
        self.train, self.val = TensorDataset(x[:12_000], price[:12_000]), TensorDataset(x[12_000:], price[12_000:])

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=256, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=500)


if __name__ == "__main__":
    L.seed_everything(7)
    trainer = L.Trainer(
        max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    began = time.time()
    trainer.fit(Prices(), datamodule=Houses())
    print(f"training took {time.time() - began:.2f} s")
