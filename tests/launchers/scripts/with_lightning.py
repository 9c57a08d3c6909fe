"""A training with Lightning's Trainer; the strategy is the argument."""

import sys
import warnings

import lightning
import loop
import torch
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore")
STEPS = 12


class Module(lightning.LightningModule):
    """Counts its own steps and reports at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.losses = loop.Small(), []

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.model(batch), batch)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self) -> None:
        loop.report(self.global_rank, len(self.losses), self.losses, self.model)


def main() -> None:
    torch.set_num_threads(1)
    lightning.seed_everything(1, verbose=False)
    strategy, devices = sys.argv[1], 1 if sys.argv[1] == "auto" else 2
    options = {
        "enable_progress_bar": False,
        "logger": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(accelerator="cpu", devices=devices, strategy=strategy, max_epochs=1, **options)
    data = loop.Numbers(STEPS * loop.BATCH * devices)
    trainer.fit(Module(), DataLoader(data, loop.BATCH, num_workers=1))


if __name__ == "__main__":
    main()
