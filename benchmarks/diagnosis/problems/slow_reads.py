"""One small file per sample, on storage that answers late."""

import tempfile
import time
from pathlib import Path

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

run = Run(steps=120, share=0.5, width=320, batch=12)


class Bucket:
    """Files behind a network."""

    def __init__(self, folder, latency):
        self.folder, self.latency = folder, latency

    def read(self, name):
        if self.latency:
            time.sleep(self.latency)  # GUILTY: the network
        return (self.folder / name).read_bytes()


class Shards(Dataset):
    def __init__(self, bucket, count, width):
        self.bucket, self.count, self.width = bucket, count, width

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with run.spends("reading"):
            raw = self.bucket.read(f"{index % 50}.bin")
        return torch.frombuffer(bytearray(raw), dtype=torch.float32), index % 4


def prepare(folder, width):
    for number in range(50):
        (folder / f"{number}.bin").write_bytes(torch.randn(width).numpy().tobytes())


with tempfile.TemporaryDirectory() as where:
    prepare(Path(where), run.width)
    bucket = Bucket(Path(where), run.pause() / run.batch)
    model = nn.Sequential(nn.Linear(run.width, 1536), nn.ReLU(), nn.Linear(1536, 768), nn.ReLU(), nn.Linear(768, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(Shards(bucket, run.steps * run.batch, run.width), run.batch, shuffle=True)
    with run.training():
        for batch, labels in loader:  # LOOP
            loss = nn.functional.cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
run.close()
