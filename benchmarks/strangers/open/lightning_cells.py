"""Count cells in microscope pictures by a density map (Lightning, checkpoint of the best epoch, early stopping)."""

import time

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIDE = 64


def pictures(n, seed):
    g = torch.Generator().manual_seed(seed)
    density = torch.zeros(n, 1, SIDE, SIDE)
    for picture in density:
        cells = torch.randint(3, SIDE - 3, (int(torch.randint(4, 30, (), generator=g)), 2), generator=g)
        picture[0, cells[:, 0], cells[:, 1]] = 1.0
    line = torch.exp(-torch.arange(-4.0, 5).pow(2) / 4)
    spot = torch.outer(line, line)[None, None]
    density = F.conv2d(density, spot / spot.sum(), padding=4)
    return TensorDataset(density * 8 + 0.1 * torch.randn(density.shape, generator=g), density * 100)


class CellCounter(L.LightningModule):
    def __init__(self, width=16, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()

        def layer(i, o, stride=1):
            return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

        self.fine = nn.Sequential(layer(1, width), layer(width, width))
        self.coarse = nn.Sequential(layer(width, 2 * width, 2), layer(2 * width, 2 * width), layer(2 * width, width))
        self.head = nn.Sequential(layer(2 * width, width), nn.Conv2d(width, 1, 1))

    def forward(self, x):
        fine = self.fine(x)
        coarse = F.interpolate(self.coarse(fine), scale_factor=2, mode="nearest")
        return self.head(torch.cat([fine, coarse], 1))

    def training_step(self, batch, _):
        x, density = batch
        loss = F.mse_loss(self(x), density)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        x, density = batch
        counted = self(x).sum((1, 2, 3)) / 100
        self.log("val_mae", (counted - density.sum((1, 2, 3)) / 100).abs().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]


def main():
    L.seed_everything(6, verbose=False)
    train, val = DataLoader(pictures(640, 0), 16, shuffle=True), DataLoader(pictures(96, 1), 48)
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        callbacks=[
            ModelCheckpoint("cells", monitor="val_mae", save_top_k=1),
            EarlyStopping("val_mae", patience=5),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    t = time.perf_counter()
    trainer.fit(CellCounter(), train, val)
    print(f"training took {time.perf_counter() - t:.2f} s")
    print("mean error of a count:", trainer.callback_metrics["val_mae"].item())


if __name__ == "__main__":
    main()
