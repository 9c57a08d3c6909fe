"""The next song of a playlist: GRU4Rec with sampled softmax."""

import os
import time

import numpy as np
import torch
from torch import nn

CHECK_EVERY = 120 if os.environ.get("REPAIRED") == "1" else 8


class Recommender(nn.Module):
    def __init__(self, songs=4000, dim=96, hidden=192):
        super().__init__()
        self.songs = nn.Embedding(songs, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.project = nn.Linear(hidden, dim)

    def forward(self, history):
        return self.project(self.rnn(self.songs(history))[0])

    def loss(self, playlists, negatives=200):
        wanted = self(playlists[:, :-1])
        positive = (wanted * self.songs(playlists[:, 1:])).sum(2, keepdim=True)
        sample = self.songs(torch.randint(0, self.songs.num_embeddings, (negatives,)))
        logits = torch.cat([positive, wanted @ sample.T], 2)
        return nn.functional.cross_entropy(logits.flatten(0, 1), torch.zeros(logits[..., 0].numel(), dtype=torch.long))

    @torch.no_grad()
    def quality(self, playlists, k=20):
        """Hit rate and mean reciprocal rank of the last song of each playlist."""
        hits, ranks = 0, []
        for playlist in playlists:
            heard, last = playlist[:-1], int(playlist[-1])
            scores = (self.songs.weight @ self(heard.unsqueeze(0))[0, -1]).tolist()
            order = sorted(range(len(scores)), key=lambda song: -scores[song])
            rank = order.index(last) + 1
            hits += rank <= k
            ranks.append(1 / rank)
        return hits / len(playlists), sum(ranks) / len(ranks)


class PlaylistTrainer:
    def __init__(self, model, train, held_out, batch=48, lr=2e-3):
        self.model, self.train, self.held_out, self.batch = model, train, held_out, batch
        self.optimizer = torch.optim.Adagrad(model.parameters(), lr=lr)
        self.history = []

    def batches(self):
        while True:
            for rows in torch.randperm(len(self.train)).split(self.batch):
                yield self.train[rows]

    def run(self, steps):
        for step, playlists in zip(range(1, steps + 1), self.batches()):
            self.optimizer.zero_grad()
            loss = self.model.loss(playlists)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.optimizer.step()
            if step % CHECK_EVERY == 0:
                self.history.append((step, *self.model.quality(self.held_out)))
            if step % 40 == 0:
                print(f"step {step} loss {loss.item():.4f} {self.history[-1:]}", flush=True)


def playlists(n, length=40, songs=4000, seed=0):
    rng = np.random.default_rng(seed)
    genre = rng.integers(0, 40, (n, 1)) * 100
    return torch.from_numpy((genre + rng.zipf(1.3, (n, length)) % 100) % songs)


if __name__ == "__main__":
    torch.manual_seed(1)
    trainer = PlaylistTrainer(Recommender(), playlists(8000), playlists(160, seed=1))
    start = time.time()
    trainer.run(240)
    print(f"training took {time.time() - start:.2f} s")
