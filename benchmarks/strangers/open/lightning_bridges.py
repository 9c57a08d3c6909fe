"""Does the bridge still carry? Strain of a bridge under traffic: a temporal autoencoder that notices when something is
different, PyTorch Lightning with a data module.
"""

import argparse
import time

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GAUGES, SAMPLES = 12, 512


def crossings(count, seed):
    """Lorries of any weight cross; each gauge feels them a little later than the one before."""
    g = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 1, SAMPLES)
    strain = torch.zeros(count, GAUGES, SAMPLES)
    for _ in range(3):
        enters, speed = torch.rand(count, 1, generator=g), 0.3 + 0.7 * torch.rand(count, 1, generator=g)
        weight = torch.rand(count, 1, 1, generator=g)
        at = enters + torch.arange(GAUGES) / GAUGES / speed / 2
        strain += weight * torch.exp(-(((t - at[..., None]) / 0.04) ** 2))
    hum = torch.sin(2 * torch.pi * (11 * t + torch.rand(count, GAUGES, 1, generator=g)))
    return strain + 0.1 * hum + 0.05 * torch.randn(strain.shape, generator=g)


class Crossings(pl.LightningDataModule):
    def __init__(self, batch_size):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        self.usual, self.held_out = (TensorDataset(crossings(n, seed)) for n, seed in ((1600, 1), (192, 2)))

    def train_dataloader(self):
        return DataLoader(self.usual, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.held_out, 64)


class Dilated(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.conv = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
        self.out = nn.Conv1d(width, width, 1)
        self.norm = nn.GroupNorm(4, width)

    def forward(self, x):
        return self.norm(x + self.out(nn.functional.glu(self.conv(x), 1)))


class Bridge(pl.LightningModule):
    def __init__(self, width: int = 48, code: int = 8, lr: float = 2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(
            nn.Conv1d(GAUGES, width, 8, 4, 2), *(Dilated(width, 2**k) for k in range(4)), nn.Conv1d(width, code, 1)
        )
        self.decoder = nn.Sequential(
            nn.Conv1d(code, width, 1),
            *(Dilated(width, 2**k) for k in range(4)),
            nn.ConvTranspose1d(width, GAUGES, 8, 4, 2),
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, _):
        loss = nn.functional.smooth_l1_loss(self(batch[0]), batch[0], beta=0.1)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", nn.functional.l1_loss(self(batch[0]), batch[0]), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.hparams.lr, self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    pl.seed_everything(35, verbose=False)
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=CSVLogger("logs"),
        log_every_n_steps=25,
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        callbacks=[
            ModelCheckpoint(monitor="val_loss"),
            EarlyStopping("val_loss", patience=3),
            LearningRateMonitor("step"),
        ],
    )
    begin = time.perf_counter()
    trainer.fit(Bridge(), datamodule=Crossings(args.batch_size))
    print(f"training took {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
