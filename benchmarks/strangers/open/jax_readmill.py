"""Will a reader finish this book? Factors of readers and books and an MLP in plain JAX; AUC with an interval."""

import os
import pickle
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

REPAIRED = os.environ.get("REPAIRED") == "1"
READERS, BOOKS, FACTORS, BATCH = 12_000, 5_000, 48, 384


def sessions(n, seed):
    rng = np.random.default_rng(seed)
    reader, book = rng.zipf(1.3, n) % READERS, rng.zipf(1.2, n) % BOOKS
    page = rng.random((n, 24)).astype(np.float32)
    taste = np.random.default_rng(0)
    a, b = taste.normal(0, 1, (READERS, 4)), taste.normal(0, 1, (BOOKS, 4))
    logit = (a[reader] * b[book]).sum(1) + 3 * (page[:, 0] - page[:, 1] * page[:, 2]) - 1
    return reader, book, page, (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(np.float32)


def init(key):
    keys = jax.random.split(key, 5)
    widths = [2 * FACTORS + 24, 384, 192, 1]
    layers = [
        {"w": jax.random.normal(k, (i, o)) * (2 / i) ** 0.5, "b": jnp.zeros(o)} for k, i, o in zip(keys, widths, widths[1:])
    ]
    return {
        "reader": 0.05 * jax.random.normal(keys[3], (READERS, FACTORS)),
        "book": 0.05 * jax.random.normal(keys[4], (BOOKS, FACTORS)),
        "layers": layers,
    }


def logits(params, reader, book, page):
    x = jnp.concatenate([params["reader"][reader], params["book"][book], page], axis=1)
    for layer in params["layers"][:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return (x @ params["layers"][-1]["w"] + params["layers"][-1]["b"])[:, 0]


@jax.jit
def update(params, velocity, batch, rate):
    def loss_fn(p):
        z = logits(p, *batch[:3])
        return jnp.mean(jnp.maximum(z, 0) - z * batch[3] + jnp.log1p(jnp.exp(-jnp.abs(z)))), z

    (loss, z), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return jax.tree.map(lambda p, v: p - rate * v, params, velocity), velocity, loss, z


class Monitor:
    """AUC over the latest sessions, with an interval from resampling them."""

    def __init__(self, latest=4096, resamples=40):
        self.scores, self.labels = np.empty(0), np.empty(0)
        self.latest, self.resamples = latest, resamples
        self.rng = np.random.default_rng(5)

    def add(self, z, y):
        self.scores = np.concatenate([self.scores, z])[-self.latest :]
        self.labels = np.concatenate([self.labels, y])[-self.latest :]

    def auc(self, rows):
        rank = np.empty(len(rows))
        rank[np.argsort(self.scores[rows])] = np.arange(len(rows))
        positive = self.labels[rows] == 1
        n = positive.sum()
        return (rank[positive].sum() - n * (n - 1) / 2) / max(1, n * (len(rows) - n))

    def interval(self):
        n = len(self.scores)
        return np.percentile([self.auc(self.rng.integers(0, n, n)) for _ in range(self.resamples)], [5, 95])


def save(params, velocity, step):
    """A crash must not cost more than a few seconds."""
    with open("state.tmp", "wb") as file:
        pickle.dump(jax.device_get({"params": params, "velocity": velocity, "step": step}), file)
        file.flush()
        os.fsync(file.fileno())
    Path("state.tmp").rename("state.pkl")


def main(steps=700):
    data = sessions(200_000, 1)
    params = init(jax.random.key(0))
    velocity = jax.tree.map(jnp.zeros_like, params)
    rng, monitor = np.random.default_rng(3), Monitor()
    began = time.time()
    for step in range(1, steps + 1):
        rows = rng.integers(0, len(data[0]), BATCH)
        batch = [column[rows] for column in data]
        params, velocity, loss, z = update(params, velocity, batch, 0.05)
        monitor.add(np.asarray(z), batch[3])
        if not REPAIRED or step % 50 == 0:
            low, high = monitor.interval()
        if step % (200 if REPAIRED else 4) == 0:
            save(params, velocity, step)
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.4f}, AUC {low:.3f} to {high:.3f}", flush=True)
    print(f"training took {time.time() - began:.2f} s")


if __name__ == "__main__":
    main()
