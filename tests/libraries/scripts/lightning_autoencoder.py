"""Lightning: an autoencoder with validation, early stopping, a checkpoint and a gradient clip."""

import logging
import tempfile

import counted
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class AutoEncoder(LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 32))
        self.validated = 0
        self.losses = []

    def training_step(self, batch, _):
        loss = nn.functional.mse_loss(self.decoder(self.encoder(batch[0])), batch[0])
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch, _):
        self.validated += 1
        self.log("val_loss", nn.functional.mse_loss(self.decoder(self.encoder(batch[0])), batch[0]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-2)


with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        max_epochs=40 * counted.SCALE,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=0.5,
        default_root_dir=folder,
        callbacks=[EarlyStopping("val_loss", patience=1), ModelCheckpoint(folder, monitor="val_loss")],
    )
    module = AutoEncoder()
    rows = counted.Rows(torch.randn(80, 32))
    trainer.fit(module, DataLoader(rows, 8, shuffle=True), DataLoader(counted.Rows(torch.randn(24, 32)), 8))
counted.finish(module, train=trainer.global_step, evaluation=module.validated, losses=module.losses)
