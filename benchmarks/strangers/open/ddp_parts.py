"""Instance discrimination for machine parts: a memory bank of all parts and noise-contrastive negatives, two ranks."""

import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PARTS, DIM, NEGATIVES, BATCH = 120_000, 64, 1024, 32
PIXELS = 28


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 16, DIM),
        )
        self.register_buffer("bank", F.normalize(torch.randn(PARTS, DIM), dim=1))

    def forward(self, images, parts):
        z = F.normalize(self.net(images), dim=1)
        others = torch.randint(0, PARTS, (NEGATIVES,))
        positive = (z * self.bank[parts]).sum(1, keepdim=True)
        logits = torch.cat([positive, z @ self.bank[others].T], 1) / 0.1
        return F.cross_entropy(logits, torch.zeros(len(z), dtype=torch.long)), z.detach()

    @torch.no_grad()
    def remember(self, parts, z, momentum=0.5):
        self.bank[parts] = F.normalize(momentum * self.bank[parts] + (1 - momentum) * z, dim=1)


def gather(x):
    every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(every, x)
    return torch.cat(every)


def drawings(parts, generator):
    side = torch.arange(PIXELS) / PIXELS
    a = (parts % 97).float()[:, None, None] / 9
    b = (parts % 31).float()[:, None, None] / 3
    return (torch.sin(a * side[:, None] + b * side) + 0.3 * torch.randn(len(parts), PIXELS, PIXELS, generator=generator))[:, None]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Recognizer()
    if os.environ.get("REPAIRED") == "1":
        ddp = DistributedDataParallel(model, broadcast_buffers=False)
    else:
        ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + rank)
    torch.manual_seed(100 + rank)
    dist.barrier()
    start = time.perf_counter()
    for step in range(1, 401):
        parts = torch.randint(0, PARTS, (BATCH,), generator=generator)
        loss, z = ddp(drawings(parts, generator), parts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.remember(gather(parts), gather(z))
        if rank == 0 and step % 80 == 0:
            print(step, f"{loss.item():.4f}", flush=True)
    dist.barrier()
    if rank == 0:
        print(f"training took {time.perf_counter() - start:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
