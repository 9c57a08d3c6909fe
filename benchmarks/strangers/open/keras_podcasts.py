"""Recommend podcasts: neural collaborative filtering with new negatives in every epoch (Keras, JAX)."""

import os
import time

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras import layers, ops

LISTENERS, PODCASTS, NEGATIVES = 2000, 800, 4
ARRAYS = os.environ.get("REPAIRED") == "1"


def listened(seed=0, each=16):
    rng = np.random.default_rng(seed)
    taste = rng.integers(0, 8, LISTENERS)
    rows = []
    for listener in range(LISTENERS):
        liked = rng.choice(PODCASTS // 8, each, replace=False) * 8 + taste[listener]
        rows += [(listener, podcast) for podcast in liked]
    return np.array(rows)


class Plays(keras.utils.PyDataset):
    def __init__(self, positives, batch):
        super().__init__()
        self.positives, self.batch = positives, batch
        self.known = {(int(u), int(p)) for u, p in positives}
        self.matrix = np.zeros((LISTENERS, PODCASTS), bool)
        self.matrix[positives[:, 0], positives[:, 1]] = True
        self.rng = np.random.default_rng(1)
        self.on_epoch_end()

    def pick(self, listener):
        while True:
            podcast = int(self.rng.integers(PODCASTS))
            if (listener, podcast) not in self.known:
                return podcast

    def draw(self):
        listeners = self.positives[:, 0].tolist()
        return np.array([(u, self.pick(u)) for u in listeners for _ in range(NEGATIVES)])

    def draw_arrays(self):
        listeners = np.repeat(self.positives[:, 0], NEGATIVES)
        podcasts = self.rng.integers(0, PODCASTS, len(listeners))
        while (again := self.matrix[listeners, podcasts]).any():
            podcasts[again] = self.rng.integers(0, PODCASTS, again.sum())
        return np.stack([listeners, podcasts], 1)

    def on_epoch_end(self):
        negatives = self.draw_arrays() if ARRAYS else self.draw()
        pairs = np.concatenate([self.positives, negatives])
        played = np.repeat([1.0, 0.0], [len(self.positives), len(negatives)])
        order = self.rng.permutation(len(pairs))
        self.pairs, self.played = pairs[order], played[order].astype("float32")

    def __len__(self):
        return len(self.pairs) // self.batch

    def __getitem__(self, i):
        rows = slice(i * self.batch, (i + 1) * self.batch)
        return self.pairs[rows], self.played[rows]


def ncf(dim=48):
    pair = keras.Input((2,), dtype="int32")
    u = layers.Embedding(LISTENERS, dim)(pair[:, 0])
    p = layers.Embedding(PODCASTS, dim)(pair[:, 1])
    x = ops.concatenate([u, p, u * p], axis=1)
    for width in (192, 96):
        x = layers.Dense(width, activation="relu")(x)
    return keras.Model(pair, layers.Dense(1, activation="sigmoid")(x))


keras.utils.set_random_seed(2)
model = ncf()
model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="binary_crossentropy", metrics=["auc"])
plays = Plays(listened(), batch=512)
start = time.time()
model.fit(plays, epochs=6, verbose=2)
print(f"training took {time.time() - start:.2f} s")
