"""Will the slope hold? Snow profiles (layers from the surface to the ground) and a transformer that reads them layer by layer.

Observers dig where they like: a profile has 3 to 120 layers, most have a dozen.
"""

import os
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

FEATURES = 7  # thickness, hardness, grain form and size, temperature, density, wetness


@dataclass
class Settings:
    profiles: int = 3400
    batch: int = 24
    width: int = 96
    heads: int = 4
    blocks: int = 3
    epochs: int = 1
    seed: int = 23
    by_depth: bool = os.environ.get("REPAIRED") == "1"


class Profiles(Dataset):
    def __init__(self, settings):
        rng = np.random.default_rng(settings.seed)
        self.layers, self.fails = [], []
        depth = np.clip(rng.lognormal(2.6, 0.75, settings.profiles), 3, 120).astype(int)
        for count in depth:
            layers = rng.normal(0, 1, (count, FEATURES)).astype("float32")
            layers[:, 1] = np.linspace(-1, 1, count) + 0.5 * layers[:, 1]
            weakest = np.diff(layers[:, 1], prepend=0).min()
            self.layers.append(torch.from_numpy(layers))
            self.fails.append(float(weakest + rng.normal(0, 0.2) < -1.4))

    def __len__(self):
        return len(self.layers)

    def __getitem__(self, i):
        return self.layers[i], self.fails[i]


class ByDepth(Sampler):
    """Batches of profiles of about the same number of layers, in random order."""

    def __init__(self, layers, batch):
        order = sorted(range(len(layers)), key=lambda i: len(layers[i]))
        self.batches = [order[i : i + batch] for i in range(0, len(order), batch)]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        yield from (self.batches[i] for i in torch.randperm(len(self.batches)).tolist())


def collate(items):
    layers, fails = zip(*items)
    x = pad_sequence(layers, batch_first=True)
    count = torch.tensor([len(each) for each in layers])
    return x, torch.arange(x.shape[1]) >= count[:, None], torch.tensor(fails)


class Reader(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.first = nn.Linear(FEATURES, s.width)
        self.place = nn.Embedding(128, s.width)
        block = nn.TransformerEncoderLayer(s.width, s.heads, 4 * s.width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, s.blocks, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(s.width), nn.Linear(s.width, 1))

    def forward(self, x, empty):
        h = self.first(x) + self.place(torch.arange(x.shape[1]))
        h = self.blocks(h, src_key_padding_mask=empty)
        h = h.masked_fill(empty[..., None], 0).sum(1) / (~empty).sum(1, keepdim=True)
        return self.head(h).squeeze(1)


def main(s):
    torch.manual_seed(s.seed)
    data = Profiles(s)
    if s.by_depth:
        loader = DataLoader(data, batch_sampler=ByDepth(data.layers, s.batch), collate_fn=collate)
    else:
        loader = DataLoader(data, batch_size=s.batch, shuffle=True, drop_last=True, collate_fn=collate)
    model = Reader(s)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    begin = time.time()
    for epoch in range(s.epochs):
        losses = []
        for x, empty, fails in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(x, empty), fails)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        print(f"epoch {epoch + 1}: {torch.stack(losses).mean():.4f}", flush=True)
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main(Settings())
