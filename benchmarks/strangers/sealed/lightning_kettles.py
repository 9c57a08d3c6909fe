"""Does the kettle boil? Sounds of a kitchen as spectra in time, a convolutional recurrent net in Lightning."""

import time

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

FRAMES, BANDS, STATES = 80, 40, 4


class Kitchen(Dataset):
    """Silence, warming up, boiling, whistling; the label of a clip is its state at the end. Takes whole batches."""

    def __init__(self, clips, seed):
        g = torch.Generator().manual_seed(seed)
        self.state = torch.randint(STATES, (clips,), generator=g)
        t, band = torch.linspace(0, 1, FRAMES)[:, None], torch.arange(BANDS)
        heat = (self.state[:, None, None] + t * torch.rand(clips, 1, 1, generator=g)) / STATES
        hiss = heat * torch.exp(-(((band - 10 - 20 * heat) / 8) ** 2))
        whistle = (heat > 0.8) * torch.exp(-((band - 30) ** 2) / 2)
        hum = torch.rand(clips, 1, BANDS, generator=g)
        self.spectra = hiss + whistle + hum + 0.3 * torch.randn(clips, FRAMES, BANDS, generator=g)

    def __len__(self):
        return len(self.state)

    def __getitem__(self, rows):
        return self.spectra[rows], self.state[rows]


def loader(clips, seed, batch, shuffle):
    data = Kitchen(clips, seed)
    order = RandomSampler(data) if shuffle else range(len(data))
    return DataLoader(data, sampler=BatchSampler(order, batch, drop_last=shuffle), batch_size=None)


class Listener(pl.LightningModule):
    def __init__(self, width=96, rate=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.near = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(inplace=True), nn.MaxPool2d((2, 2)),
            nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(inplace=True), nn.MaxPool2d((2, 2)),
        )  # fmt: skip
        self.far = nn.GRU(48 * BANDS // 4, width, batch_first=True)
        self.head = nn.Linear(width, STATES)

    def forward(self, spectra):
        h = self.near(spectra[:, None]).transpose(1, 2).flatten(2)
        return self.head(self.far(h)[0][:, -1])

    def training_step(self, batch, _):
        spectra, state = batch
        loss = nn.functional.cross_entropy(self(spectra), state)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        spectra, state = batch
        self.log("right", (self(spectra).argmax(1) == state).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), self.hparams.rate, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    pl.seed_everything(5, verbose=False)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=5,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        gradient_clip_val=1.0,
    )
    train, control = loader(2048, 1, 64, True), loader(128, 2, 128, False)
    start = time.perf_counter()
    trainer.fit(Listener(), train, control)
    print(f"training took {time.perf_counter() - start:.2f} s, right {trainer.callback_metrics['right']:.3f}")


if __name__ == "__main__":
    main()
