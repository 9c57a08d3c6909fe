"""Ripe, wormy, or a stone? Turnips on a conveyor belt of a farm, seen by a cheap camera; ConvNet, accelerate."""

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

REPAIRED = os.environ.get("REPAIRED") == "1"
KINDS = ("ripe", "small", "split", "wormy", "stone", "clod")


def belt(count, seed):
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(len(KINDS), (count,), generator=g)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 40), torch.linspace(-1, 1, 40), indexing="ij")
    middle = 0.6 * (torch.rand(count, 2, 1, 1, generator=g) - 0.5)
    wide = (0.3 + 0.1 * (kind % 3)[:, None, None]) * (0.8 + 0.4 * torch.rand(count, 1, 1, generator=g))
    body = torch.sigmoid(20 * (wide - ((x - middle[:, 0]) ** 2 + (y - middle[:, 1]) ** 2).sqrt()))
    spots = (torch.sin(25 * x + 9 * middle[:, 0]) * torch.sin(25 * y) > 0.6) * (kind >= 3)[:, None, None]
    image = body[:, None] * (0.5 + 0.5 * torch.rand(count, 3, 1, 1, generator=g)) - 0.4 * (spots * body)[:, None]
    return TensorDataset(image + 0.15 * torch.randn(count, 3, 40, 40, generator=g), kind)


def network():
    layers, inside = [], 3
    for outside in (32, 64, 96):
        layers += [nn.Conv2d(inside, outside, 3, 2, 1), nn.BatchNorm2d(outside), nn.ReLU()]
        inside = outside
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(96 * 25, 1536), nn.ReLU(), nn.Linear(1536, len(KINDS)))


def look(accelerator, model, loader):
    """Share of right answers, and the loss."""
    model.eval()
    right, lost = [], []
    for image, kind in loader:
        logits = model(image)
        lost.append(nn.functional.cross_entropy(logits, kind))
        right.append(accelerator.gather_for_metrics((logits.argmax(1) == kind).float()))
    model.train()
    return torch.cat(right).mean().item(), torch.stack(lost).mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--look-every", type=int, default=60 if REPAIRED else 4)
    parser.add_argument("--save-every", type=int, default=60 if REPAIRED else 3)
    args = parser.parse_args()
    set_seed(12)
    with tempfile.TemporaryDirectory() as folder:
        kept = ProjectConfiguration(folder, automatic_checkpoint_naming=True, total_limit=3)
        accelerator = Accelerator(cpu=True, project_config=kept)
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05, fused=True)
        train = DataLoader(belt(2400, 1), args.batch, shuffle=True, drop_last=True)
        control = DataLoader(belt(320, 2), 128)
        model, optimizer, train, control = accelerator.prepare(model, optimizer, train, control)
        step, best = 0, 0.0
        begin = time.time()
        for _ in range(args.epochs):
            for image, kind in train:
                loss = nn.functional.cross_entropy(model(image), kind, label_smoothing=0.1)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if step % args.look_every == 0:
                    right, lost = look(accelerator, model, control)
                    best = max(best, right)
                    accelerator.print(f"step {step}: {right:.3f} right, loss {lost:.3f}", flush=True)
                if step % args.save_every == 0:
                    accelerator.save_state()
        print(f"training took {time.time() - begin:.2f} s, best {best:.3f}")
        print(f"{len(list(Path(folder).rglob('*.safetensors')))} states kept")


if __name__ == "__main__":
    main()
