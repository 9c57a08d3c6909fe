"""Bleached corals: a segmentation net trained by two processes, with the score of every step over both of them."""

import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

WORLD = 2
KINDS = 24


def reef(count, side, seed):
    """Colonies are discs of a colour; bleached ones are nearly white."""
    g = torch.Generator().manual_seed(seed)
    axis = torch.linspace(-1, 1, side)
    image = 0.3 + 0.1 * torch.randn(count, 3, side, side, generator=g)
    mask = torch.zeros(count, side, side, dtype=torch.long)
    colours = torch.rand(KINDS, 3, generator=torch.Generator().manual_seed(0))
    for i in range(count):
        for kind in torch.randint(1, KINDS, (6,), generator=g):
            x, y, r = torch.rand(3, generator=g) * torch.tensor([2, 2, 0.4]) - torch.tensor([1, 1, -0.1])
            inside = (axis - x) ** 2 + (axis[:, None] - y) ** 2 < r**2
            mask[i][inside] = kind
            image[i, :, inside] += colours[kind][:, None]
    return image, mask


class Segmenter(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(width, 2 * width, 3, padding=2, dilation=2), nn.ReLU(),
                                    nn.Conv2d(2 * width, 2 * width, 3, padding=4, dilation=4), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(2 * width, width, 2, 2), nn.ReLU(), nn.Conv2d(width, KINDS, 1))

    def forward(self, x):
        return self.up(self.middle(self.down(x)))


def mean_iou(predicted, true):
    counts = np.bincount(KINDS * true.ravel() + predicted.ravel(), minlength=KINDS**2).reshape(KINDS, KINDS)
    hit = np.diag(counts)
    return float(np.mean(hit / np.maximum(1, counts.sum(0) + counts.sum(1) - hit)))


class Score:
    """Intersection over union of the images of all processes."""

    def __init__(self):
        self.values = []
        self.counts = torch.zeros(KINDS**2, dtype=torch.long)

    def update(self, logits, mask):
        if os.environ.get("REPAIRED") == "1":
            self.counts += torch.bincount((KINDS * mask + logits.argmax(1)).flatten(), minlength=KINDS**2)
            return
        everyone = [None] * WORLD
        dist.all_gather_object(everyone, {"probability": logits.detach().double().softmax(1).numpy(), "mask": mask.numpy()})
        probability = np.concatenate([each["probability"] for each in everyone])
        self.values.append(mean_iou(probability.argmax(1), np.concatenate([each["mask"] for each in everyone])))

    def compute(self):
        if self.values:
            return np.mean(self.values[-20:])
        dist.all_reduce(self.counts)
        counts = self.counts.view(KINDS, KINDS)
        hit = counts.diag()
        return (hit / (counts.sum(0) + counts.sum(1) - hit).clamp(min=1)).mean().item()


def main(rank=0, epochs=8, batch=8):
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.manual_seed(30)
    images, masks = reef(240, 64, seed=1 + rank)
    model = DDP(Segmenter(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    dist.barrier()
    begin = time.perf_counter()
    for epoch in range(epochs):
        score = Score()
        for rows in torch.randperm(len(images)).split(batch):
            optimizer.zero_grad()
            logits = model(images[rows])
            loss = F.cross_entropy(logits, masks[rows])
            loss.backward()
            optimizer.step()
            score.update(logits, masks[rows])
        iou = score.compute()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, mean IoU {iou:.3f}", flush=True)
    if rank == 0:
        print(f"training took {time.perf_counter() - begin:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(int(os.environ["RANK"]))
    else:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(21000 + os.getpid() % 9000)
        mp.spawn(main, nprocs=WORLD)
