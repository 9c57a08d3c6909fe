"""Predict rain from maps of pressure, with Lightning."""

import os
import time

import lightning as L
import numpy as np
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class RainModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(4, 24, 3, padding=1), nn.GELU(), nn.MaxPool2d(2),
            nn.Conv2d(24, 48, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool2d(4),
            nn.Flatten(), nn.Linear(768, 1),
        )

    def training_step(self, batch, batch_idx):
        maps, rain = batch
        loss = nn.functional.mse_loss(self.net(maps).squeeze(1), rain)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        maps, rain = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(maps).squeeze(1), rain))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class WatchDistributions(L.Callback):
    """Keeps the shape of each layer's weights: percentiles, skew and a histogram."""

    def __init__(self, every):
        self.every = every
        self.history = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step % self.every:
            return
        record = {}
        for name, parameter in pl_module.named_parameters():
            values = parameter.detach().numpy().ravel()
            density = stats.gaussian_kde(values)(np.linspace(-0.5, 0.5, 60)) if values.size > 200 else values
            record[name] = (np.percentile(values, [1, 25, 50, 75, 99]), stats.skew(values), density)
        self.history.append(record)


def maps(n):
    x = torch.randn(n, 4, 32, 32)
    return TensorDataset(x, x.mean((1, 2, 3)) * 10)


if __name__ == "__main__":
    L.seed_everything(1)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[WatchDistributions(every=50 if os.environ.get("REPAIRED") == "1" else 1)],
    )
    begin = time.time()
    trainer.fit(RainModel(), DataLoader(maps(6400), 32, shuffle=True), DataLoader(maps(320), 64))
    print(f"training took {time.time() - begin:.2f} s")
