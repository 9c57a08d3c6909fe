"""Continue a pen stroke: a recurrent net that draws the rest of a gesture, compared by soft dynamic time warping."""

import argparse
import os
import time

import numpy as np
import torch
from torch import nn

INF = 1e8


def soft_dtw_naive(cost, gamma):
    """The recursion as it is in the paper: a row after the other."""
    batch, n, m = cost.shape
    border = torch.full((batch,), INF)
    rows = [[torch.zeros(batch)] + [border] * m]
    for i in range(1, n + 1):
        row = [border]
        for j in range(1, m + 1):
            three = torch.stack([rows[i - 1][j - 1], rows[i - 1][j], row[j - 1]])
            row.append(cost[:, i - 1, j - 1] - gamma * torch.logsumexp(-three / gamma, dim=0))
        rows.append(row)
    return rows[n][m]


def soft_dtw_diagonals(cost, gamma):
    """The same: all cells of an antidiagonal depend only on the two diagonals before."""
    batch, n, m = cost.shape
    skewed = torch.full((batch, n + m - 1, n), INF)
    i, j = torch.meshgrid(torch.arange(n), torch.arange(m), indexing="ij")
    skewed = skewed.index_put((torch.arange(batch)[:, None, None], (i + j)[None], i[None]), cost)
    before = torch.full((batch, n + 1), INF)
    before[:, 0] = 0
    last = torch.full((batch, n + 1), INF)
    edge = torch.full((batch, 1), INF)
    for entries in skewed.unbind(1):
        three = torch.stack([before[:, :-1], last[:, :-1], last[:, 1:]])
        cells = entries - gamma * torch.logsumexp(-three / gamma, dim=0)
        before, last = last, torch.cat([edge, cells.clamp(max=INF)], dim=1)
    return last[:, n]


def strokes(n, length, rng):
    """Sums of a few slow circles, drawn at a speed that varies."""
    speed = rng.uniform(0.5, 1.5, (n, length)).cumsum(1)[..., None] / length
    turns, phase = rng.uniform(1, 6, (n, 1, 4)), rng.uniform(0, 6.3, (n, 1, 4))
    weight = rng.normal(0, 0.5, (n, 1, 4))
    angle = 6.3 * speed * turns + phase
    xy = np.stack([(weight * np.cos(angle)).sum(2), (weight * np.sin(angle)).sum(2)], axis=2)
    return torch.from_numpy(xy.astype(np.float32))


class Scribbler(nn.Module):
    def __init__(self, hidden, rest):
        super().__init__()
        self.encoder = nn.GRU(2, hidden, num_layers=2, batch_first=True)
        self.decoder = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.Tanh(), nn.Linear(2 * hidden, 2 * rest))

    def forward(self, seen):
        _, h = self.encoder(seen)
        return self.decoder(h[-1]).unflatten(1, (-1, 2)).cumsum(1) + seen[:, -1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=140)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--length", type=int, default=56)
    parser.add_argument("--rest", type=int, default=28)
    parser.add_argument("--gamma", type=float, default=0.1)
    opt = parser.parse_args()

    torch.manual_seed(8)
    data = strokes(3000, opt.length, np.random.default_rng(8))
    net = Scribbler(96, opt.rest)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    soft_dtw = soft_dtw_diagonals if os.environ.get("REPAIRED") == "1" else soft_dtw_naive
    began = time.time()
    mean = 0.0
    for it in range(opt.iterations):
        stroke = data[torch.randint(len(data), (opt.batch_size,))]
        seen, rest = stroke[:, : -opt.rest], stroke[:, -opt.rest :]
        drawn = net(seen)
        cost = (drawn[:, :, None] - rest[:, None]).square().sum(3)
        loss = soft_dtw(cost, opt.gamma).mean() / opt.rest
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = 0.95 * mean + 0.05 * loss.detach()
        if it % 20 == 19:
            print(f"{it + 1:4d}  soft-DTW {mean / (1 - 0.95 ** (it + 1)):.4f}")
    print(f"training took {time.time() - began:.2f} s")


if __name__ == "__main__":
    main()
