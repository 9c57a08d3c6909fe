"""How many hours until a parcel arrives? Scans of parcels are streamed from parquet files, a residual MLP predicts the rest."""

import os
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

NUMERIC = ["weight", "length", "width", "height", "hour", "weekday", "stops", "distance", "delay_so_far", "rain"]
CATEGORIES = {"depot": 60, "carrier": 12, "service": 5, "region": 90}
FILES, ROWS, BATCH = 6, 7000, 128


def write_scans(folder: Path) -> list[Path]:
    rng = np.random.default_rng(77)
    effect = {name: rng.normal(0, 3, size) for name, size in CATEGORIES.items()}
    paths = []
    for number in range(FILES):
        frame = pd.DataFrame({name: rng.gamma(2.0, 1.0, ROWS) for name in NUMERIC})
        for name, size in CATEGORIES.items():
            frame[name] = rng.integers(0, size, ROWS)
        hours = 6 + 4 * frame["distance"] + frame["delay_so_far"] * frame["rain"] + 0.5 * frame["stops"] ** 2
        for name in CATEGORIES:
            hours += effect[name][frame[name]]
        frame["hours"] = hours + rng.normal(0, 1, ROWS)
        paths.append(folder / f"scans-{number:02d}.parquet")
        frame.to_parquet(paths[-1])
    return paths


class Scans(IterableDataset):
    """Yields parcel by parcel; the files and a buffer of parcels are shuffled."""

    def __init__(self, paths, buffer=2048):
        self.paths, self.buffer = list(paths), buffer

    def parcels(self):
        random.shuffle(self.paths)
        for path in self.paths:
            frame = pd.read_parquet(path)
            for _, row in frame.iterrows():
                numeric = torch.tensor([row[name] for name in NUMERIC], dtype=torch.float32)
                category = torch.tensor([int(row[name]) for name in CATEGORIES])
                yield numeric, category, torch.tensor(row["hours"], dtype=torch.float32)

    def __iter__(self):
        held = []
        for parcel in self.parcels():
            if len(held) < self.buffer:
                held.append(parcel)
                continue
            slot = random.randrange(self.buffer)
            held[slot], parcel = parcel, held[slot]
            yield parcel
        random.shuffle(held)
        yield from held


class Batches(IterableDataset):
    """The same, but a batch at a time."""

    def __init__(self, paths, size):
        self.paths, self.size = list(paths), size

    def __iter__(self):
        random.shuffle(self.paths)
        for path in self.paths:
            frame = pd.read_parquet(path).sample(frac=1)
            numeric = torch.from_numpy(frame[NUMERIC].to_numpy(np.float32))
            category = torch.from_numpy(frame[list(CATEGORIES)].to_numpy(np.int64))
            hours = torch.from_numpy(frame["hours"].to_numpy(np.float32))
            yield from zip(numeric.split(self.size), category.split(self.size), hours.split(self.size))


class Arrival(nn.Module):
    def __init__(self, width=384, blocks=4):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 16) for size in CATEGORIES.values())
        self.first = nn.Linear(len(NUMERIC) + 16 * len(CATEGORIES), width)
        block = lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(block() for _ in range(blocks))
        self.last = nn.Linear(width, 1)

    def forward(self, numeric, category):
        x = torch.cat([numeric, *(table(category[:, i]) for i, table in enumerate(self.tables))], dim=1)
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x).squeeze(1)


def main():
    random.seed(torch.manual_seed(1).initial_seed())
    with tempfile.TemporaryDirectory() as folder:
        paths = write_scans(Path(folder))
        whole = os.environ.get("REPAIRED") == "1"
        loader = DataLoader(Batches(paths, BATCH), batch_size=None) if whole else DataLoader(Scans(paths), batch_size=BATCH)
        model = Arrival()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        begin = time.monotonic()
        for epoch in range(2):
            errors = []
            for numeric, category, hours in loader:
                loss = nn.functional.smooth_l1_loss(model(numeric, category), hours)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                errors.append(loss.detach())
            print(f"epoch {epoch}: {torch.stack(errors).mean():.3f}, last {torch.stack(errors[-50:]).mean():.3f}", flush=True)
        print(f"training took {time.monotonic() - begin:.2f} s")


main()
