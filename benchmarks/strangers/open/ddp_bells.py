"""When was the bell cast? Partials of its sound, a mixer over time and frequency; two processes on a machine that may
be taken away at any time. torchrun --nproc-per-node=2 train.py
"""

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FRAMES, BANDS = 16, 64


def strokes(count, seed):
    """Decaying partials (hum, prime, tierce, quint, nominal) on a logarithmic scale, and the year of the casting."""
    g = torch.Generator().manual_seed(seed)
    age = torch.rand(count, generator=g)
    place = 12 * torch.log2(torch.tensor([0.5, 1.0, 1.19, 1.5, 2.0, 2.66])) + 30
    place = place + 3 * torch.randn(count, 1, generator=g) + (age[:, None] - 0.5) * torch.tensor([3, 0, -2, 1, 0, 4.0])
    decay = 2 + 3 * torch.rand(count, 6, generator=g)
    t, band = torch.linspace(0, 1, FRAMES), torch.arange(BANDS)
    power = torch.exp(-t[None, :, None] * decay[:, None])
    shape = torch.exp(-((band - place[..., None]) ** 2) / 4)
    return torch.einsum("ntp,npb->ntb", power, shape) + 0.1 * torch.randn(count, FRAMES, BANDS, generator=g), age


class Mixer(nn.Module):
    def __init__(self, width, blocks):
        super().__init__()
        self.first, self.last = nn.Linear(BANDS, width), nn.Linear(width, 1)
        self.over_time = nn.ModuleList(
            nn.Sequential(nn.Linear(FRAMES, 64), nn.GELU(), nn.Linear(64, FRAMES)) for _ in range(blocks)
        )
        self.over_width = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(blocks)
        )

    def forward(self, x):
        h = self.first(x)
        for time_part, width_part in zip(self.over_time, self.over_width):
            h = h + time_part(h.transpose(1, 2)).transpose(1, 2)
            h = h + width_part(h)
        return self.last(h.mean(1)).squeeze(1)


def digest(path):
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            sha.update(part)
    return sha.hexdigest()


def keep(model, optimizer, step, folder):
    """We lost a month to a broken file once, so: write, flush to the disk, read again, compare, only then replace."""
    path = folder / "new.pt"
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    again = torch.load(path)
    assert all(torch.equal(value, again["model"][name]) for name, value in state["model"].items())
    (folder / "last.sha256").write_text(digest(path))
    path.replace(folder / "last.pt")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=135)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--keep-every", type=int, default=60 if os.environ.get("REPAIRED") == "1" else 3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    x, age = strokes(3000, 10 + rank)
    model = DistributedDataParallel(Mixer(args.width, 6))
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4)
    folder = Path("kept")
    folder.mkdir(exist_ok=True)
    dist.barrier()
    begin = time.time()
    for step in range(1, args.steps + 1):
        rows = torch.randint(len(x), (8,))
        loss = nn.functional.smooth_l1_loss(model(x[rows]), age[rows], beta=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.keep_every == 0:
            if rank == 0:
                keep(model.module, optimizer, step, folder)
            dist.barrier()
        if rank == 0 and step % 30 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"training took {time.time() - begin:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
