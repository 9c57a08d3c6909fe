"""Knots in boards of wood: where are they and how large? A centre-heatmap detector with Lightning, two optimizers by hand."""

import os
import time
from dataclasses import dataclass

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Options:
    side: int = 64
    width: int = 24
    batch: int = 16
    boards: int = 720
    epochs: int = 3


class Boards(Dataset):
    """Grain along the board, dark knots across it; targets on a grid of a quarter of the size."""

    def __init__(self, options, n, seed):
        g = torch.Generator().manual_seed(seed)
        axis = torch.arange(options.side)
        self.images, self.targets = [], []
        for _ in range(n):
            grain = torch.randn(options.side, 1, generator=g).mul(0.2).expand(-1, options.side)
            image = 0.6 + grain + 0.05 * torch.randn(options.side, options.side, generator=g)
            target = torch.zeros(2, options.side // 4, options.side // 4)
            for _ in range(int(torch.randint(1, 5, (), generator=g))):
                y, x = torch.randint(6, options.side - 6, (2,), generator=g)
                r = 2 + 4 * torch.rand((), generator=g)
                image = image - 0.5 * torch.exp(-((axis[:, None] - y) ** 2 + (axis - x) ** 2) / r**2)
                target[:, y // 4, x // 4] = torch.tensor([1.0, r])
            self.images.append(image[None])
            self.targets.append(target)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.targets[index]


def block(a, b, stride=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.1))


class Detector(L.LightningModule):
    def __init__(self, options):
        super().__init__()
        self.automatic_optimization = False
        w = options.width
        self.body = nn.Sequential(block(1, w), block(w, 2 * w, 2), block(2 * w, 2 * w), block(2 * w, 3 * w, 2), block(3 * w, 3 * w))
        self.centre = nn.Conv2d(3 * w, 1, 1)
        self.radius = nn.Sequential(nn.Conv2d(3 * w, w, 1), nn.ReLU(), nn.Conv2d(w, 1, 1))

    def losses(self, batch):
        image, target = batch
        h = self.body(image)
        there = target[:, :1]
        centre = F.binary_cross_entropy_with_logits(self.centre(h), there, pos_weight=torch.tensor(20.0))
        radius = ((self.radius(h) - target[:, 1:]).abs() * there).sum() / there.sum().clamp(min=1)
        return centre, radius

    def training_step(self, batch, index):
        body, heads = self.optimizers()
        centre, radius = self.losses(batch)
        body.zero_grad()
        heads.zero_grad()
        self.manual_backward(centre + 0.1 * radius)
        self.clip_gradients(body, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
        body.step()
        heads.step()
        self.log("centre", centre.detach(), prog_bar=True)
        self.log("radius", radius.detach())

    def validation_step(self, batch, index):
        self.log("val_centre", self.losses(batch)[0])

    def configure_optimizers(self):
        heads = [*self.centre.parameters(), *self.radius.parameters()]
        return torch.optim.SGD(self.body.parameters(), lr=0.02, momentum=0.9), torch.optim.Adam(heads, lr=2e-3)


class Progress(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if index % 10 == 0:
            print(f"{trainer.current_epoch}:{index} {trainer.callback_metrics['centre']:.3f}", end=" ", flush=True)


options = Options()
L.seed_everything(31, verbose=False)
trainer = L.Trainer(
    max_epochs=options.epochs, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False,
    logger=CSVLogger(os.getcwd(), "boards"), log_every_n_steps=10,
    callbacks=[Progress(), LearningRateMonitor(), ModelCheckpoint(monitor="val_centre", save_top_k=1)],
)
train = DataLoader(Boards(options, options.boards, 0), options.batch, shuffle=True)
val = DataLoader(Boards(options, 48, 1), 24)
start = time.time()
trainer.fit(Detector(options), train, val)
print(f"\ntraining took {time.time() - start:.2f} s")
