"""A Lightning training that sleeps in its training step, as long as the arithmetic takes several times."""

import logging
import time
import warnings

import torch
from lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
STEPS, PAUSE = 300, 0.01


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, _):
        x, y = batch
        time.sleep(PAUSE)  # GUILTY
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


rows = TensorDataset(torch.randn(16 * STEPS, 64), torch.randint(0, 10, (16 * STEPS,)))
trainer = Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
trainer.fit(Module(), DataLoader(rows, batch_size=16))
