"""Will the ferry be late? Weather, tide, cars and lorries; a gated MLP in Lightning, and which of the columns matter."""

import os
import time

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

COLUMNS = ["wind", "gusts", "direction", "waves", "period", "tide", "current", "fog", "rain", "temperature", "pressure",
           "cars", "lorries", "foot", "coaches", "crew", "age", "draught", "hour", "weekday", "month", "holiday",
           "previous", "berth"]


def crossings(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, len(COLUMNS)), np.float32)
    minutes = 4 * np.maximum(0, x[:, 0] + x[:, 3]) * (x[:, 5] > 0) + 3 * x[:, 12] + 2 * np.abs(x[:, 18]) + x[:, 22]
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(minutes + rng.standard_normal(n, np.float32)))


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        a, b = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(F.silu(a) * b)


class Ferries(L.LightningModule):
    def __init__(self, width=128, depth=4, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(len(COLUMNS), width), *(Gated(width) for _ in range(depth)), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)

    def training_step(self, batch, index):
        loss = F.huber_loss(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("late", F.l1_loss(self(batch[0]), batch[1]), prog_bar=False)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


class Importance(Callback):
    """By how many minutes the prediction is worse if one column is shuffled."""

    def __init__(self, held_out, repeats=2, always=True):
        self.x, self.minutes = held_out.tensors
        self.repeats, self.always = repeats, always
        self.of_epochs = []

    @torch.no_grad()
    def importance(self, module):
        module.eval()
        usual = F.l1_loss(module(self.x), self.minutes)
        table = np.zeros((self.repeats, len(COLUMNS)))
        for repeat in range(self.repeats):
            for column in range(len(COLUMNS)):
                x = self.x.clone()
                x[:, column] = x[torch.randperm(len(x)), column]
                table[repeat, column] = F.l1_loss(module(x), self.minutes) - usual
        module.train()
        return dict(zip(COLUMNS, table.mean(0)))

    def on_train_epoch_end(self, trainer, module):
        if self.always or trainer.current_epoch == trainer.max_epochs - 1:
            self.of_epochs.append(self.importance(module))


def main():
    L.seed_everything(113)
    train, held_out = crossings(9000, 1), crossings(1500, 2)
    importance = Importance(held_out, always=os.environ.get("REPAIRED") != "1")
    trainer = L.Trainer(max_epochs=7, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[importance],
                        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
    start = time.time()
    trainer.fit(Ferries(), DataLoader(train, 64, shuffle=True), DataLoader(held_out, 500))
    last = sorted(importance.of_epochs[-1].items(), key=lambda one: -one[1])
    print(", ".join(f"{name} {minutes:.2f}" for name, minutes in last[:6]))
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
