"""Rank the hotels of a search: ListNet plus pairs, a list per search of different length. Keras 3, torch backend."""
import os
import time

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
from keras import layers

LIST, FEATURES = 24, 32
MASKED = os.environ.get("REPAIRED") == "1"


def searches(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, LIST, FEATURES)).astype("float32")
    weight = np.random.default_rng(99).standard_normal(FEATURES).astype("float32")
    clicks = (x @ weight / 3 + rng.standard_normal((n, LIST)) > 1.5).astype("float32")
    for i, length in enumerate(rng.integers(8, LIST + 1, n)):
        x[i, length:] = 0
        clicks[i, length:] = -1
    return x, clicks


def ranking_loss(clicks, scores):
    losses = []
    for clicked, score in zip(clicks, scores):
        shown = clicked >= 0
        c, s = clicked[shown], score[shown]
        top = torch.nn.functional.cross_entropy(s, (c + 1e-6) / (c + 1e-6).sum())
        better = (c[:, None] > c).float()
        pairs = (torch.nn.functional.softplus(s - s[:, None]) * better).sum() / better.sum().clamp(min=1)
        losses.append(top + pairs)
    return torch.stack(losses)


def ranking_loss_masked(clicks, scores):
    shown = clicks >= 0
    c = (clicks + 1e-6) * shown
    log_p = scores.masked_fill(~shown, -1e9).log_softmax(1)
    top = -(c / c.sum(1, keepdim=True) * log_p).sum(1)
    better = (clicks[:, :, None] > clicks[:, None, :]) & shown[:, :, None] & shown[:, None, :]
    pairs = torch.nn.functional.softplus(scores[:, None, :] - scores[:, :, None]) * better
    return top + pairs.sum((1, 2)) / better.sum((1, 2)).clamp(min=1)


def scorer():
    inputs = keras.Input((LIST, FEATURES))
    x = layers.Dense(160, activation="relu")(inputs)
    x = layers.Add()([x, layers.MultiHeadAttention(4, 40)(x, x)])
    x = layers.LayerNormalization()(x)
    x = layers.Dense(160, activation="relu")(x)
    return keras.Model(inputs, layers.Reshape((LIST,))(layers.Dense(1)(x)))


keras.utils.set_random_seed(31)
x, y = searches(6400, 0)
model = scorer()
model.compile(optimizer="adam", loss=ranking_loss_masked if MASKED else ranking_loss)
begin = time.perf_counter()
model.fit(x, y, batch_size=32, epochs=3, verbose=2)
print(f"training took {time.perf_counter() - begin:.2f} s")
