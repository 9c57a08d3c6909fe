"""Count the apples on a tree from a photo: density maps with a small U-Net, PyTorch Lightning."""

import time

import lightning as L
import torch
import torch.nn as nn
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

SIDE = 64


def blur(maps, sigma=1.5):
    k = torch.exp(-torch.arange(-4.0, 5.0) ** 2 / (2 * sigma**2))
    k = (k[:, None] * k[None, :] / (k.sum() ** 2))[None, None]
    return nn.functional.conv2d(maps, k, padding=4)


def orchard(n, seed):
    g = torch.Generator().manual_seed(seed)
    points = (torch.rand(n, 1, SIDE, SIDE, generator=g) < 0.006 * torch.rand(n, 1, 1, 1, generator=g)).float()
    density = blur(points)
    leaves = nn.functional.interpolate(torch.randn(n, 1, 16, 16, generator=g), scale_factor=4, mode="bilinear")
    red = 0.3 * leaves + 8 * density
    green = 0.6 + 0.4 * leaves - 3 * density
    return torch.cat([red, green], 1) + 0.2 * torch.randn(n, 2, SIDE, SIDE, generator=g), density


class OrchardData(L.LightningDataModule):
    def setup(self, stage):
        self.train_set = TensorDataset(*orchard(432, 1))
        self.val_set = TensorDataset(*orchard(64, 2))

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=32)


def double(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.ReLU(), nn.Conv2d(cout, cout, 3, padding=1), nn.ReLU())


class Counter(L.LightningModule):
    def __init__(self, base=16, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.down1, self.down2, self.bottom = double(2, base), double(base, 2 * base), double(2 * base, 4 * base)
        self.up2, self.up1 = double(6 * base, 2 * base), double(3 * base, base)
        self.pool, self.grow = nn.MaxPool2d(2), nn.Upsample(scale_factor=2, mode="nearest")
        self.out = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(self.pool(a))
        y = self.grow(self.bottom(self.pool(b)))
        y = self.grow(self.up2(torch.cat([b, y], 1)))
        return self.out(self.up1(torch.cat([a, y], 1)))

    def training_step(self, batch, batch_idx):
        photo, density = batch
        loss = 100 * nn.functional.mse_loss(self(photo), density)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        photo, density = batch
        counted, real = self(photo).sum((1, 2, 3)), density.sum((1, 2, 3))
        self.log("apples_off", (counted - real).abs().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return [optimizer], [schedule]


if __name__ == "__main__":
    L.seed_everything(30)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=CSVLogger("logs"),
        callbacks=[LearningRateMonitor("epoch"), ModelCheckpoint(monitor="apples_off", mode="min")],
        log_every_n_steps=10,
        enable_progress_bar=False,
    )
    clock = time.time()
    trainer.fit(Counter(), datamodule=OrchardData())
    print(f"training took {time.time() - clock:.2f} s")
