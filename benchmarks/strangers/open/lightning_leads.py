"""Which leads will buy? Embeddings and a small MLP, PyTorch Lightning, torchmetrics."""

import os
import time

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision

LEADS, FIELDS, VALUES = 128_000, 16, 200
THRESHOLDS = 200 if os.environ.get("REPAIRED") == "1" else None


def leads(seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, VALUES, (LEADS, FIELDS), generator=g)
    effect = torch.randn(FIELDS, VALUES, generator=g)
    score = effect[torch.arange(FIELDS), x].sum(1) / 4
    return TensorDataset(x, (score + 0.5 * torch.randn(LEADS, generator=g) > 0.8).float())


class Leads(L.LightningModule):
    def __init__(self, dim=16, width=256):
        super().__init__()
        self.tables = nn.Embedding(FIELDS * VALUES, dim)
        self.register_buffer("offsets", torch.arange(FIELDS) * VALUES, persistent=False)
        self.mlp = nn.Sequential(
            nn.Linear(FIELDS * dim, width), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1),
        )
        self.auc = BinaryAUROC(thresholds=THRESHOLDS)
        self.precision_recall = BinaryAveragePrecision(thresholds=THRESHOLDS)

    def forward(self, x):
        return self.mlp(self.tables(x + self.offsets).flatten(1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
        buys = logits.detach().sigmoid()
        self.auc.update(buys, y.int())
        self.precision_recall.update(buys, y.int())
        self.log("auc", self.auc.compute(), prog_bar=True)
        self.log("ap", self.precision_recall.compute(), prog_bar=True)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    L.seed_everything(12, verbose=False)
    loader = DataLoader(leads(0), batch_size=256, shuffle=True)
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Leads()
    t = time.time()
    trainer.fit(model, loader)
    print({name: round(value.item(), 3) for name, value in trainer.callback_metrics.items()})
    print(f"training took {time.time() - t:.2f} s")
