"""Grade of stone from drilling in a quarry: torque, feed, rotation, dust. A small net, large batches, Lightning."""

import time

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn

DEPTHS, SENSORS, GRADES = 16, 6, 7


def holes(n, seed):
    g = torch.Generator().manual_seed(seed)
    hardness = torch.randn(n, DEPTHS, 1, generator=g).cumsum(1) / DEPTHS**0.5
    response = torch.randn(SENSORS, generator=torch.Generator().manual_seed(0))
    x = hardness * response + 0.3 * torch.randn(n, DEPTHS, SENSORS, generator=g)
    grade = torch.bucketize(hardness.mean((1, 2)), torch.linspace(-1, 1, GRADES - 1))
    return x, grade


class Whole:
    """Batches of tensors in memory; no item is touched by itself."""

    def __init__(self, tensors, batch, shuffle):
        self.tensors, self.batch, self.shuffle = tensors, batch, shuffle

    def __len__(self):
        return len(self.tensors[0]) // self.batch

    def __iter__(self):
        n = len(self.tensors[0])
        order = torch.randperm(n) if self.shuffle else torch.arange(n)
        for rows in order.split(self.batch)[: len(self)]:
            yield tuple(tensor[rows] for tensor in self.tensors)


class Grader(L.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(SENSORS, 24, 3, padding=1), nn.ReLU(), nn.Conv1d(24, 24, 3, padding=1), nn.ReLU(),
                                 nn.Flatten(), nn.Linear(24 * DEPTHS, width), nn.ReLU(), nn.Linear(width, GRADES))

    def forward(self, x):
        return self.net(x.transpose(1, 2))

    def training_step(self, batch, index):
        x, grade = batch
        x = x + 0.05 * torch.randn_like(x)
        loss = F.cross_entropy(self(x), grade)
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        x, grade = batch
        logits = self(x)
        self.log_dict({"val/loss": F.cross_entropy(logits, grade), "val/accuracy": (logits.argmax(1) == grade).float().mean()})

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def main():
    L.seed_everything(114)
    train, held_out = holes(120_000, 1), holes(16_384, 2)
    trainer = L.Trainer(
        max_epochs=9, accelerator="cpu", logger=CSVLogger("."), log_every_n_steps=20, gradient_clip_val=1.0,
        callbacks=[ModelCheckpoint(monitor="val/loss"), LearningRateMonitor()],
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
    start = time.perf_counter()
    trainer.fit(Grader(), Whole(train, 2048, True), Whole(held_out, 4096, False))
    accuracy = trainer.callback_metrics["val/accuracy"]
    print(f"training took {time.perf_counter() - start:.2f} s, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
