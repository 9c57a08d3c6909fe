"""A small training with a data loader, alone or as one rank of several; prints what it did as one line of JSON."""

import hashlib
import json
import os
import sys

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BATCH = 4


class Numbers(Dataset):
    """Items that are computed when a worker of the loader asks for them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        torch.mm(torch.ones(8, 8), torch.ones(8, 8))  # what a worker does with torch is no step
        return torch.sin(torch.arange(8.0) + index)


class Small(nn.Module):
    """A model that several launchers' processes can afford."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layers(batch)


def report(rank: int, steps: int, losses: list[float], model: nn.Module, **more: object) -> None:
    """Print the line that the test reads."""
    digest = hashlib.sha256(repr(losses).encode())
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().cpu().numpy().tobytes())
    line = {"rank": rank, "pid": os.getpid(), "steps": steps, "digest": digest.hexdigest(), **more}
    sys.stdout.write(f"\n{json.dumps(line)}\n")
    sys.stdout.flush()


def train(rank: int, world: int, steps: int = 12, workers: int = 1, **more: object) -> None:
    """Train; with a process group if there is one."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model: nn.Module = Small()
    grouped = distributed.is_initialized()
    if grouped:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Numbers(steps * BATCH * world)
    sampler = DistributedSampler(data, world, rank, shuffle=False)
    loader = DataLoader(data, BATCH, sampler=sampler, num_workers=workers)
    losses, count = [], 0
    for batch in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        count += 1
    report(rank, count, losses, model, **more)
