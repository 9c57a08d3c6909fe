"""A GAN that weaves carpets: hinge loss, spectral norm, manual optimization in Lightning (one step each)."""

import time

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

SIZE, NOISE = 32, 64


def carpets(n):
    g = torch.Generator().manual_seed(1)
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij")
    a, b, c = (torch.rand(n, 1, 1, generator=g) * k + 1 for k in (4, 4, 3))
    field = torch.cos(3.14 * a * x.abs()) * torch.cos(3.14 * b * y.abs())
    border = ((x.abs() > 0.8) | (y.abs() > 0.8)).float()
    medallion = torch.sigmoid(12 * (0.4 - (x.abs() ** c + y.abs() ** c)))
    palette = torch.rand(n, 3, 3, 1, 1, generator=g) * 2 - 1
    parts = torch.stack([field, border.expand_as(field), medallion], 1)
    return torch.tanh((palette * parts[:, None]).sum(2))


class Generator(nn.Sequential):
    def __init__(self, ch=48):
        super().__init__(
            nn.Linear(NOISE, 4 * ch * 16), nn.Unflatten(1, (4 * ch, 4, 4)), nn.BatchNorm2d(4 * ch), nn.ReLU(),
            nn.ConvTranspose2d(4 * ch, 2 * ch, 4, 2, 1), nn.BatchNorm2d(2 * ch), nn.ReLU(),
            nn.ConvTranspose2d(2 * ch, ch, 4, 2, 1), nn.BatchNorm2d(ch), nn.ReLU(),
            nn.ConvTranspose2d(ch, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip


class Critic(nn.Sequential):
    def __init__(self, ch=48):
        def conv(i, o):
            return [spectral_norm(nn.Conv2d(i, o, 4, 2, 1)), nn.LeakyReLU(0.2)]

        super().__init__(*conv(3, ch), *conv(ch, 2 * ch), *conv(2 * ch, 4 * ch), nn.Flatten(),
                         spectral_norm(nn.Linear(64 * ch, 1)))  # fmt: skip


class CarpetGAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = Generator(), Critic()

    def training_step(self, batch):
        (real,) = batch
        weave, judge = self.optimizers()
        fake = self.generator(torch.randn(len(real), NOISE))

        self.toggle_optimizer(judge)
        loss_d = F.relu(1 - self.critic(real)).mean() + F.relu(1 + self.critic(fake.detach())).mean()
        judge.zero_grad()
        self.manual_backward(loss_d)
        judge.step()
        self.untoggle_optimizer(judge)

        self.toggle_optimizer(weave)
        loss_g = -self.critic(fake).mean()
        weave.zero_grad()
        self.manual_backward(loss_g)
        weave.step()
        self.untoggle_optimizer(weave)
        self.log_dict({"d": loss_d, "g": loss_g})

    def on_train_epoch_end(self):
        self.generator.eval()
        with torch.no_grad():
            torch.save(self.generator(torch.randn(16, NOISE)), f"epoch{self.current_epoch}.pt")
        self.generator.train()

    def configure_optimizers(self):
        return [torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.0, 0.9)) for net in (self.generator, self.critic)]


def main():
    L.seed_everything(1901, verbose=False)
    loader = DataLoader(TensorDataset(carpets(1600)), batch_size=32, shuffle=True, drop_last=True)
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    began = time.perf_counter()
    trainer.fit(CarpetGAN(), loader)
    print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
    print(f"training took {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
