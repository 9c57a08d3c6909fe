"""Length of stay in hospital, one expert tower per clinic: Lightning, and a log of the gradients as its documentation shows."""

import csv
import os
import time

import lightning as L
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLINICS, VALUES = 24, 20


def stays(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, VALUES, generator=g)
    clinic = torch.randint(CLINICS, (n,), generator=g)
    effect = torch.randn(CLINICS, VALUES, generator=torch.Generator().manual_seed(0))
    days = (x * effect[clinic]).sum(1) / 4 + (x[:, 0] * x[:, 1]).sin() + 0.2 * torch.randn(n, generator=g)
    return TensorDataset(x, clinic, days)


class TableLogger(Logger):
    """One CSV file for each name of a value."""

    name, version = "table", 0

    def log_metrics(self, metrics, step=None):
        for key, value in metrics.items():
            folder, _, rest = key.rpartition("/")
            os.makedirs(os.path.join("log", folder), exist_ok=True)
            with open(os.path.join("log", folder, f"{rest}.csv"), "a", newline="") as file:
                csv.writer(file).writerow([step, value])

    def log_hyperparams(self, params, *args, **kwargs):
        pass


class Towers(L.LightningModule):
    def __init__(self, lr=2e-3, width=32):
        super().__init__()
        self.save_hyperparameters()
        self.trunk = nn.Sequential(nn.Linear(VALUES, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, width))
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)) for _ in range(CLINICS))

    def forward(self, x, clinic):
        h = self.trunk(x)
        every = torch.cat([tower(h) for tower in self.towers], dim=1)
        return every.gather(1, clinic[:, None]).squeeze(1)

    def training_step(self, batch, _):
        x, clinic, days = batch
        loss = nn.functional.smooth_l1_loss(self(x, clinic), days)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, _):
        x, clinic, days = batch
        self.log("test/mae", (self(x, clinic) - days).abs().mean(), on_epoch=True)

    def on_before_optimizer_step(self, optimizer):
        if os.environ.get("REPAIRED") == "1" and self.global_step % 50:
            return
        self.log_dict(grad_norm(self, norm_type=2))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)]


def main():
    L.seed_everything(9)
    train = DataLoader(stays(16_000, 1), batch_size=128, shuffle=True)
    test = DataLoader(stays(2_000, 2), batch_size=500)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=TableLogger(),
        log_every_n_steps=5,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    begin = time.time()
    trainer.fit(Towers(), train, test)
    print(f"training took {time.time() - begin:.2f} s")
    print("MAE", round(float(trainer.callback_metrics["test/mae"]), 3))


if __name__ == "__main__":
    main()
