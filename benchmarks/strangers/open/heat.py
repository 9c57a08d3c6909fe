"""A Fourier neural operator that learns the heat equation on a square."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def solve(n, side=48, seconds=0.01, seed=0):
    """Random temperatures and the exact solution some time later."""
    g = torch.Generator().manual_seed(seed)
    k = torch.fft.fftfreq(side, 1 / side)
    k2 = k[:, None] ** 2 + k[None, :] ** 2
    u0 = torch.fft.ifft2(torch.fft.fft2(torch.randn(n, side, side, generator=g)) / (1 + k2)).real * side
    u1 = torch.fft.ifft2(torch.fft.fft2(u0) * torch.exp(-seconds * k2)).real
    return u0.unsqueeze(1), u1.unsqueeze(1)


class SpectralConv(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        scale = 1 / width**2
        self.low = nn.Parameter(scale * torch.randn(width, width, modes, modes, dtype=torch.cfloat))
        self.high = nn.Parameter(scale * torch.randn(width, width, modes, modes, dtype=torch.cfloat))

    def forward(self, x):
        m = self.modes
        f = torch.fft.rfft2(x)
        out = torch.zeros_like(f)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, :m, :m], self.low)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, -m:, :m], self.high)
        return torch.fft.irfft2(out, s=x.shape[-2:])


class FNO(nn.Module):
    def __init__(self, width=20, modes=10, layers=4):
        super().__init__()
        self.lift = nn.Conv2d(3, width, 1)
        self.spectral = nn.ModuleList(SpectralConv(width, modes) for _ in range(layers))
        self.local = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(layers))
        self.project = nn.Sequential(nn.Conv2d(width, 64, 1), nn.GELU(), nn.Conv2d(64, 1, 1))

    def forward(self, u):
        axis = torch.linspace(0, 1, u.shape[-1])
        grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij")).expand(len(u), -1, -1, -1)
        x = self.lift(torch.cat([u, grid], 1))
        for spectral, local in zip(self.spectral, self.local):
            x = nn.functional.gelu(spectral(x) + local(x))
        return self.project(x)


def relative(p, y):
    return ((p - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean()


def main(epochs=3, batch=16):
    torch.manual_seed(0)
    train, test = random_split(TensorDataset(*solve(848)), [768, 80])
    loader = DataLoader(train, batch_size=batch, shuffle=True)
    model = FNO()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=epochs * len(loader))
    t0 = time.time()
    for epoch in range(epochs):
        model.train()
        total = torch.zeros(())
        for u0, u1 in loader:
            optimizer.zero_grad()
            loss = relative(model(u0), u1)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
        model.eval()
        with torch.no_grad():
            error = torch.stack([relative(model(u0), u1) for u0, u1 in DataLoader(test, batch_size=40)]).mean()
        print(f"epoch {epoch} train {total / len(loader):.4f} test {error:.4f}")
    print(f"training took {time.time() - t0:.2f} s")


if __name__ == "__main__":
    main()
