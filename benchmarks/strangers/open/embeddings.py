"""Two towers that match users and songs."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Towers(nn.Module):
    def __init__(self, users=60_000, songs=40_000, dim=64):
        super().__init__()
        self.user = nn.Embedding(users, dim, sparse=True)
        self.song = nn.Embedding(songs, dim, sparse=True)
        self.left = nn.Sequential(nn.Linear(dim, 512), nn.ReLU(), nn.Linear(512, 128))
        self.right = nn.Sequential(nn.Linear(dim, 512), nn.ReLU(), nn.Linear(512, 128))

    def forward(self, user, song):
        u = nn.functional.normalize(self.left(self.user(user)))
        s = nn.functional.normalize(self.right(self.song(song)))
        return u @ s.T * 20


def export(model, folder, step):
    os.makedirs(folder, exist_ok=True)
    torch.save(model.state_dict(), os.path.join(folder, f"towers-{step % 2}.pt"))
    np.savez_compressed(
        os.path.join(folder, "songs.npz"), vectors=model.song.weight.detach().numpy()[:24000].astype(np.float16)
    )


def run(epochs=1, batch=384):
    n = 384 * 700
    data = TensorDataset(torch.randint(0, 60_000, (n,)), torch.randint(0, 40_000, (n,)))
    loader = DataLoader(data, batch_size=batch, shuffle=True)
    towers = Towers()
    tables = torch.optim.SparseAdam([towers.user.weight, towers.song.weight], lr=1e-3)
    rest = torch.optim.Adam([*towers.left.parameters(), *towers.right.parameters()], lr=1e-3)
    every = 350 if os.environ.get("REPAIRED") == "1" else 15
    step = 0
    t0 = time.time()
    for epoch in range(epochs):
        for user, song in loader:
            scores = towers(user, song)
            loss = nn.functional.cross_entropy(scores, torch.arange(len(user)))
            tables.zero_grad()
            rest.zero_grad()
            loss.backward()
            tables.step()
            rest.step()
            step += 1
            if step % every == 0:
                export(towers, "export", step)
            if step % 60 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")
    print(f"training took {time.time() - t0:.2f} s")


run()
