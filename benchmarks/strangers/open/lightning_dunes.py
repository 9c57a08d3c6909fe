"""Dunes from orbit: a small vision transformer finds them patch by patch (Lightning, warm-up, averaged weights)."""

import time

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, PATCH = 64, 8


class Dunes(Dataset):
    """Terrain is drawn once; an item is a view of it."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        field = torch.randn(n, 1, 9, 9, generator=g)
        height = nn.functional.interpolate(field, (SIDE, SIDE), mode="bicubic")
        ripple = torch.sin(torch.arange(SIDE) * 1.6) * (height > 0.4)
        self.x = height + 0.5 * ripple + 0.2 * torch.randn(height.shape, generator=g)
        self.y = (nn.functional.avg_pool2d((height > 0.4).float(), PATCH) > 0.5).float().flatten(1)

    def __len__(self):
        return len(self.x)

    def __getitems__(self, rows):
        return self.x[rows], self.y[rows]


class DuneFinder(pl.LightningModule):
    def __init__(self, dim=112, depth=3, heads=4, lr=6e-4, warmup=8):
        super().__init__()
        self.save_hyperparameters()
        self.patches = nn.Conv2d(1, dim, PATCH, PATCH)
        self.places = nn.Parameter(0.02 * torch.randn(1, (SIDE // PATCH) ** 2, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 1))

    def forward(self, x):
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2) + self.places)).squeeze(-1)

    def step(self, batch):
        x, y = batch
        logits = self(x)
        return nn.functional.binary_cross_entropy_with_logits(logits, y), logits, y

    def training_step(self, batch, batch_idx):
        return self.step(batch)[0]

    def validation_step(self, batch, batch_idx):
        loss, logits, y = self.step(batch)
        self.log_dict({"val_loss": loss, "val_acc": ((logits > 0) == y.bool()).float().mean()})

    def configure_optimizers(self):
        h = self.hparams
        optimizer = torch.optim.AdamW(self.parameters(), h.lr, weight_decay=0.02)
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=h.warmup)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warmup, "interval": "step"}}


def together(batch):
    return batch


def main():
    pl.seed_everything(30, verbose=False)
    train = DataLoader(Dunes(1280, 0), 32, shuffle=True, drop_last=True, collate_fn=together)
    val = DataLoader(Dunes(128, 1), 64, collate_fn=together)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=3,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[StochasticWeightAveraging(3e-4, swa_epoch_start=2)],
    )
    begin = time.time()
    trainer.fit(DuneFinder(), train, val)
    print(f"training took {time.time() - begin:.2f} s")
    print({k: round(float(v), 4) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
