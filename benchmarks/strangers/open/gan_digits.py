"""DCGAN on little drawings; two optimizers, one picture each epoch."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def weights(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)


class Generator(nn.Module):
    def __init__(self, nz=64, ngf=24):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 4), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False), nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, ndf=24):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ndf * 2), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False), nn.BatchNorm2d(ndf * 4), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 4, 1, 4, 1, 0, bias=False),
        )

    def forward(self, x):
        return self.main(x).flatten()


def main():
    torch.manual_seed(999)
    netG, netD = Generator().apply(weights), Discriminator().apply(weights)
    data = TensorDataset(torch.rand(3200, 1, 32, 32) * 2 - 1)
    loader = DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
    optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    noise = torch.randn(16, 64, 1, 1)
    start = time.time()
    for epoch in range(3):
        for i, (real,) in enumerate(loader):
            netD.zero_grad()
            errD_real = criterion(netD(real), torch.ones(len(real)))
            errD_real.backward()
            fake = netG(torch.randn(len(real), 64, 1, 1))
            errD_fake = criterion(netD(fake.detach()), torch.zeros(len(real)))
            errD_fake.backward()
            optimizerD.step()
            netG.zero_grad()
            errG = criterion(netD(fake), torch.ones(len(real)))
            errG.backward()
            optimizerG.step()
            if i % 50 == 0:
                print(f"[{epoch}][{i}/{len(loader)}] D: {(errD_real + errD_fake).item():.4f} G: {errG.item():.4f}")
        with torch.no_grad():
            torch.save(netG(noise), f"fake-{epoch}.pt")
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
