"""Find mildew on vine leaves: pictures from a drone and from telephones. torchrun --nproc_per_node=2 train.py"""

import io
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

SIDE = 64


def picture(rng, side, sick):
    """A JPEG of a leaf: green, with pale spots if it is sick."""
    coarse = rng.normal(0, 25, (side // 16, side // 16, 3)) + (60, 130, 50)
    image = np.asarray(Image.fromarray(coarse.clip(0, 255).astype("u1")).resize((side, side)), "f4")
    if sick:
        for _ in range(6):
            y, x = rng.integers(0, side - side // 8, 2)
            image[y : y + side // 8, x : x + side // 8] += 60
    image += rng.normal(0, 8, image.shape)
    file = io.BytesIO()
    Image.fromarray(image.clip(0, 255).astype("u1")).save(file, "JPEG", quality=92)
    return file.getvalue()


def collect(folder, drone=96, telephone=96):
    """Write the pictures, by source."""
    rng = np.random.default_rng(2)
    os.makedirs(folder, exist_ok=True)
    for number in range(drone + telephone):
        side = 640 if number < drone else 128
        source = "drone" if number < drone else "telephone"
        sick = int(rng.integers(2))
        with open(f"{folder}/{source}-{number:04d}-{sick}.jpg", "wb") as file:
            file.write(picture(rng, side, sick))


class Leaves(Dataset):
    def __init__(self, paths):
        self.paths = paths
        self.loaded = [self.load(i) for i in range(len(paths))] if os.environ.get("REPAIRED") == "1" else None

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return self.loaded[i] if self.loaded else self.load(i)

    def load(self, i):
        with Image.open(self.paths[i]) as image:
            pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC), "f4")
        x = torch.from_numpy(pixels).permute(2, 0, 1) / 127.5 - 1
        return x, float(self.paths[i].rsplit("-", 1)[1][0])


def share(paths, rank, world):
    size = len(paths) // world
    return paths[rank * size : (rank + 1) * size]


def conv(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(4, b), nn.SiLU())


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = os.path.abspath("leaves")
    if rank == 0:
        collect(folder)
    dist.barrier()
    paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))
    torch.manual_seed(3)
    loader = DataLoader(Leaves(share(paths, rank, world)), batch_size=16, shuffle=True)
    model = DDP(nn.Sequential(conv(3, 32), conv(32, 48), conv(48, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    loss_of = nn.BCEWithLogitsLoss()
    t = time.time()
    for epoch in range(26):
        total = torch.zeros(1)
        for x, sick in loader:
            loss = loss_of(model(x).squeeze(1), sick.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: {total.item() / world / len(loader):.3f}", flush=True)
    if rank == 0:
        print(f"training took {time.time() - t:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
