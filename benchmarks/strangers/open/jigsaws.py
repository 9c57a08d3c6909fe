"""Put jigsaw puzzles of nine pieces together: a net looks at them, Sinkhorn's iteration makes a soft permutation."""
from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    side: int = 3
    piece: int = 16
    batch: int = 24
    steps: int = 140
    rounds: int = 20
    temperature: float = 0.5
    lr: float = 1e-3


def pictures(count: int, size: int, g: torch.Generator) -> Tensor:
    """Smooth skies with a horizon and a sun, as they are on most puzzles."""
    rough = torch.randn(count, 3, 6, 6, generator=g)
    x = F.interpolate(rough, size=(size, size), mode="bicubic")
    y = torch.linspace(-1, 1, size)[None, None, :, None]
    horizon = torch.rand(count, 1, 1, 1, generator=g) - 0.5
    return 0.4 * x + torch.tanh(4 * (y - horizon)) * torch.tensor([0.6, 1.0, -0.8])[None, :, None, None]


class Puzzler(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg, places = cfg, cfg.side**2
        self.look = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(32, 48, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(48 * (cfg.piece // 4) ** 2, 96))  # fmt: skip
        layer = nn.TransformerEncoderLayer(96, 4, 192, 0.0, batch_first=True)
        self.compare = nn.TransformerEncoder(layer, 2)
        self.where = nn.Linear(96, places)

    def soften(self, score: Tensor) -> Tensor:
        """Rows and columns are normalised in turn, until both nearly sum to one."""
        score = score / self.cfg.temperature
        for _ in range(self.cfg.rounds):
            score = score - score.logsumexp(-1, keepdim=True)
            score = score - score.logsumexp(-2, keepdim=True)
        return score.exp()

    def forward(self, pieces: Tensor) -> Tensor:
        h = self.look(pieces.flatten(0, 1)).unflatten(0, pieces.shape[:2])
        score = self.where(self.compare(h))
        if os.environ.get("REPAIRED") == "1":
            return self.soften(score)
        return torch.stack([self.soften(one) for one in score])


def cut(x: Tensor, cfg: Config) -> Tensor:
    parts = x.unfold(2, cfg.piece, cfg.piece).unfold(3, cfg.piece, cfg.piece)
    return parts.permute(0, 2, 3, 1, 4, 5).flatten(1, 2)


def main(cfg: Config) -> None:
    torch.manual_seed(12)
    g = torch.Generator().manual_seed(1)
    box = cut(pictures(1500, cfg.side * cfg.piece, g), cfg)
    net = Puzzler(cfg)
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
    begin = time.time()
    for step in range(1, cfg.steps + 1):
        pieces = box[torch.randint(len(box), (cfg.batch,), generator=g)]
        order = torch.stack([torch.randperm(cfg.side**2, generator=g) for _ in range(cfg.batch)])
        mixed = pieces.gather(1, order[:, :, None, None, None].expand_as(pieces))
        p = net(mixed)
        loss = -(p.gather(2, order[:, :, None]) + 1e-8).log().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 35 == 0:
            right = (p.argmax(2) == order).float().mean()
            print(f"step {step}: loss {loss.item():.3f}, {right.item():.1%} of the pieces in place", flush=True)
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main(Config())
