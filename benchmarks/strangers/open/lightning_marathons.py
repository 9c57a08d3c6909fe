"""Finish times of marathons from the watch of a runner: heart rate, pace, cadence and altitude of the first half.

PyTorch Lightning, quantiles instead of one number, gradients of four batches are added up.
"""

import time

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

QUANTILES = torch.tensor([0.1, 0.5, 0.9])


class Runs(Dataset):
    def __init__(self, runners: int = 960, samples: int = 192) -> None:
        g = torch.Generator().manual_seed(42195)
        fitness = torch.rand(runners, 1, generator=g)
        km = torch.linspace(0, 21.1, samples)
        hills = torch.randn(runners, 1, generator=g) * torch.sin(km / 3 + 6 * torch.rand(runners, 1, generator=g))
        pace = 7 - 2.5 * fitness + 0.3 * hills + 0.1 * torch.randn(runners, samples, generator=g)
        heart = 150 + 25 * torch.rand(runners, 1, generator=g) + 0.8 * km * (1 - fitness) + 3 * hills
        cadence = 190 - 4 * pace + torch.randn(runners, samples, generator=g)
        self.x = torch.stack([pace - 5.5, (heart - 160) / 10, (cadence - 168) / 5, hills], 1)
        wall = ((heart[:, -1] - 165) / 10).clamp(min=0) * (1 - fitness[:, 0])
        self.y = pace.mean(1) * 42.2 / 60 + 0.3 * wall + 0.05 * torch.randn(runners, generator=g)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int):
        return self.x[i], self.y[i]


class Finish(pl.LightningModule):
    def __init__(self, width: int = 72, lr: float = 2e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.stem = nn.Conv1d(4, width, 7, stride=2, padding=3)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 3 * width, dropout=0.05, batch_first=True, norm_first=True), 3,
            enable_nested_tensor=False,
        )
        self.out = nn.Linear(width, len(QUANTILES))

    def forward(self, x):
        h = self.encoder(self.stem(x).transpose(1, 2)).mean(1)
        return 4.0 + self.out(h)

    def pinball(self, batch):
        x, y = batch
        over = y[:, None] - self(x)
        return torch.maximum(QUANTILES * over, (QUANTILES - 1) * over).mean()

    def training_step(self, batch, batch_idx):
        loss = self.pinball(batch)
        self.log("train", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", self.pinball(batch), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams.lr, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    pl.seed_everything(26, workers=True)
    train, val = random_split(Runs(), [896, 64])
    trainer = pl.Trainer(
        max_epochs=4, accelerator="cpu", accumulate_grad_batches=4, gradient_clip_val=1.0, log_every_n_steps=10,
        logger=CSVLogger(".", name="marathons"), enable_model_summary=False,
        callbacks=[LearningRateMonitor("step"), EarlyStopping("val", patience=3), TQDMProgressBar(refresh_rate=20),
                   ModelCheckpoint(monitor="val", save_top_k=1, save_weights_only=True)],
    )
    start = time.time()
    trainer.fit(Finish(), DataLoader(train, 16, shuffle=True), DataLoader(val, 32))
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
