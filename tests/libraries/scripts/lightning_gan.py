"""Lightning's GAN with manual optimization: two optimizers, toggled; global_step counts both."""

import logging

import counted
import torch
from lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Gan(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 20))
        self.critic = nn.Sequential(nn.Linear(20, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        self.losses = []

    def forward(self, noise):
        return self.generator(noise)

    def training_step(self, batch, _):
        first, second = self.optimizers()
        real, noise = batch[0], torch.randn(len(batch[0]), 8)
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        self.toggle_optimizer(first)
        fooled = nn.functional.binary_cross_entropy_with_logits(self.critic(self(noise)), ones)
        first.zero_grad()
        self.manual_backward(fooled)
        first.step()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        loss = nn.functional.binary_cross_entropy_with_logits(self.critic(real), ones)
        loss = loss + nn.functional.binary_cross_entropy_with_logits(self.critic(self(noise).detach()), zeros)
        second.zero_grad()
        self.manual_backward(loss)
        second.step()
        self.untoggle_optimizer(second)
        self.losses += [fooled.detach(), loss.detach()]

    def configure_optimizers(self):
        return torch.optim.Adam(self.generator.parameters(), 1e-3), torch.optim.Adam(self.critic.parameters(), 1e-3)


trainer = Trainer(
    max_epochs=3 * counted.SCALE,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
module = Gan()
trainer.fit(module, DataLoader(counted.Rows(torch.randn(96, 20)), 16, shuffle=True))
counted.finish(module, train=trainer.global_step // 2, losses=module.losses)
