"""Is it saffron, and how much of it? Hyperspectral pictures of spice, cubes of 32 bands, a net that convolves in three
dimensions and predicts the share of safflower, turmeric and dyed maize in it.
"""

import logging
import time
from argparse import ArgumentParser
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

logger = logging.getLogger("saffron")


def cubes(count, bands=32, side=20, seed=2):
    g = torch.Generator().manual_seed(seed)
    wave = torch.linspace(0, 1, bands)
    centres, widths = torch.tensor([0.15, 0.35, 0.55, 0.8]), torch.tensor([0.08, 0.12, 0.06, 0.1])
    spectra = torch.exp(-(((wave - centres[:, None]) / widths[:, None]) ** 2)) + 0.3 * wave
    share = torch.distributions.Dirichlet(torch.tensor([4.0, 1.0, 1.0, 0.7])).sample((count,))
    threads = nn.functional.interpolate(torch.randn(count, 4, 5, 5, generator=g), size=(side, side), mode="bilinear")
    local = (share.log()[:, :, None, None] + threads).softmax(1)
    light = 1 + 0.15 * torch.randn(count, 1, 1, 1, generator=g)
    cube = torch.einsum("nkhw,kb->nbhw", local, spectra) * light
    return (cube + 0.03 * torch.randn(cube.shape, generator=g))[:, None], local.mean((2, 3))


class Separable(nn.Module):
    """First along the spectrum, then in the plane."""

    def __init__(self, cin, cout, stride):
        super().__init__()
        self.spectrum = nn.Conv3d(cin, cout, (5, 1, 1), (stride, 1, 1), (2, 0, 0))
        self.plane = nn.Conv3d(cout, cout, (1, 3, 3), (1, stride, stride), (0, 1, 1))
        self.norm = nn.BatchNorm3d(cout)

    def forward(self, x):
        return nn.functional.silu(self.norm(self.plane(nn.functional.silu(self.spectrum(x)))))


class SpiceNet(nn.Module):
    def __init__(self, parts=4):
        super().__init__()
        self.body = nn.Sequential(Separable(1, 16, 2), Separable(16, 32, 2), Separable(32, 64, 2))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.LazyLinear(128), nn.SiLU(), nn.Linear(128, parts))

    def forward(self, x):
        return self.head(self.body(x)).log_softmax(1)


def divergence(net, loader):
    net.eval()
    with torch.inference_mode():
        total = sum(nn.functional.kl_div(net(x), y, reduction="sum").item() for x, y in loader)
    net.train()
    return total / len(loader.dataset)


def train(net, data, epochs, lr):
    learn, held = random_split(data, [len(data) - 160, 160])
    loader = DataLoader(learn, batch_size=32, shuffle=True, drop_last=True)
    check = DataLoader(held, batch_size=80)
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(loader))
    best = float("inf")
    for epoch in range(1, epochs + 1):
        for x, share in loader:
            loss = nn.functional.kl_div(net(x), share, reduction="batchmean")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
        found = divergence(net, check)
        logger.info("epoch %d: %.4f on the held-out part", epoch, found)
        if found < best:
            best = found
            torch.save(net.state_dict(), Path("best.pt"))


def main():
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--cubes", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(0)
    data = TensorDataset(*cubes(args.cubes))
    net = SpiceNet()
    net(data[0][0][None])
    begin = time.perf_counter()
    train(net, data, args.epochs, args.lr)
    print(f"training took {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
