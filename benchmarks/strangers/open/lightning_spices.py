"""Tell spices by their smell: curves of an electronic nose, a convolutional net in Lightning, and their family tree."""

import os
import time
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from scipy.cluster import hierarchy
from torch import nn
from torch.utils.data import DataLoader, Dataset

SPICES = ["anise", "caraway", "cardamom", "clove", "cumin", "fennel", "ginger", "mace", "nutmeg", "sumac"]
REPAIRED = os.environ.get("REPAIRED") == "1"


class Sniffs(Dataset):
    """Sixteen sensors, 64 readings of each while the air is drawn in."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        taste = np.random.default_rng(0).normal(size=(len(SPICES), 16, 2))
        self.spice = rng.integers(0, len(SPICES), count)
        amount = rng.uniform(0.5, 1.5, (count, 1, 1))
        rise, fall = np.exp(0.4 * taste[self.spice]).transpose(2, 0, 1)[..., None]
        t = np.linspace(0, 4, 64)
        curve = amount * (np.exp(-t / (1 + fall)) - np.exp(-t / (0.3 * rise)))
        drift = np.cumsum(rng.normal(size=(count, 16, 64)), 2)
        self.curves = (300 + 40 * curve + 0.8 * drift).astype(np.float32)
        self.scaled = self.scale() if REPAIRED else None

    def scale(self):
        return (self.curves - self.curves.mean((0, 2), keepdims=True)) / self.curves.std((0, 2), keepdims=True)

    def __len__(self):
        return len(self.curves)

    def __getitem__(self, i):
        x = self.scale()[i] if self.scaled is None else self.scaled[i]
        return torch.from_numpy(x), self.spice[i]


class FamilyTree(pl.Callback):
    """Which sniffs are alike? Leaves are put into the best order, for the plots."""

    def __init__(self, sniffs, folder, every):
        self.sniffs, self.folder, self.every = sniffs, folder, every

    def on_train_epoch_end(self, trainer, module):
        if (trainer.current_epoch + 1) % self.every:
            return
        x = torch.from_numpy(self.sniffs.scale())
        module.eval()
        with torch.no_grad():
            z = module.body(x)
        module.train()
        tree = hierarchy.linkage(z.numpy(), "average", metric="cosine", optimal_ordering=True)
        np.save(self.folder / f"epoch{trainer.current_epoch:02d}.npy", tree)


class Nose(pl.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(16, width, 7, padding=3), nn.BatchNorm1d(width), nn.GELU(),
            nn.Conv1d(width, 2 * width, 5, padding=2), nn.BatchNorm1d(2 * width), nn.GELU(), nn.MaxPool1d(2),
            nn.Conv1d(2 * width, 2 * width, 5, padding=2), nn.BatchNorm1d(2 * width), nn.GELU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten())  # fmt: skip
        self.head = nn.Linear(2 * width, len(SPICES))

    def training_step(self, batch, batch_idx):
        x, spice = batch
        logits = self.head(self.body(x))
        self.log("right", (logits.argmax(1) == spice).float().mean(), on_step=False, on_epoch=True)
        return nn.functional.cross_entropy(logits, spice)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    pl.seed_everything(10, verbose=False)
    folder = Path("trees")
    folder.mkdir(exist_ok=True)
    sniffs = Sniffs(440, 1)
    loader = DataLoader(sniffs, batch_size=32, shuffle=True)
    trainer = pl.Trainer(
        max_epochs=7,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[FamilyTree(Sniffs(1000, 2), folder, every=7 if REPAIRED else 1)],
    )
    begin = time.time()
    trainer.fit(Nose(), loader)
    print(f"right in the last epoch: {trainer.callback_metrics['right']:.3f}")
    print(f"training took {time.time() - begin:.2f} s")
