"""PyTorch's DCGAN: the discriminator sees real and generated pictures in two backward passes, then the generator trains."""

import counted
import torch
from torch import nn
from torch.utils.data import DataLoader

generator = nn.Sequential(
    nn.ConvTranspose2d(10, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
    nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
    nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh(),
)  # fmt: skip
discriminator = nn.Sequential(
    nn.Conv2d(3, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(8, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(16, 1, 4, 1, 0, bias=False), nn.Flatten(0), nn.Sigmoid(),
)  # fmt: skip
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
dataloader = DataLoader(counted.Rows(torch.randn(128, 3, 16, 16)), 16, shuffle=True)
fixed_noise = torch.randn(4, 10, 1, 1)
losses, steps, pictures = [], 0, 0
for _ in range(2 * counted.SCALE):
    for i, data in enumerate(dataloader):
        discriminator.zero_grad()
        label = torch.full((16,), 1.0)
        errD_real = criterion(discriminator(data[0]), label)
        errD_real.backward()
        fake = generator(torch.randn(16, 10, 1, 1))
        label.fill_(0.0)
        errD_fake = criterion(discriminator(fake.detach()), label)
        errD_fake.backward()
        optimizerD.step()
        generator.zero_grad()
        label.fill_(1.0)
        errG = criterion(discriminator(fake), label)
        errG.backward()
        optimizerG.step()
        steps += 1
        losses += [errD_real.item(), errD_fake.item(), errG.item()]
        if i % 4 == 0:
            with torch.no_grad():
                generator(fixed_noise)
            pictures += 1
counted.finish(generator, discriminator, train=steps, losses=losses, forwards=4 * steps + pictures)
