"""The next return of many shares: a GRU written in plain JAX, the learning rate halved when the loss stops falling."""

import os
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

REPAIRED = os.environ.get("REPAIRED") == "1"


class Weights(NamedTuple):
    gates: jax.Array
    candidate: jax.Array
    shares: jax.Array
    out: jax.Array


def init(key, hidden=128, inputs=4, shares=500):
    a, b, c, d = jax.random.split(key, 4)
    wide = inputs + hidden
    return Weights(
        jax.random.normal(a, (wide, 2 * hidden)) / wide**0.5,
        jax.random.normal(b, (wide, hidden)) / wide**0.5,
        jax.random.normal(c, (shares, hidden)) * 0.1,
        jax.random.normal(d, (hidden,)) / hidden**0.5,
    )


def predict(w, share, days):
    def cell(h, x):
        z, r = jnp.split(jax.nn.sigmoid(jnp.concatenate([x, h], 1) @ w.gates), 2, axis=1)
        new = jnp.tanh(jnp.concatenate([x, r * h], 1) @ w.candidate)
        return (1 - z) * h + z * new, None

    h, _ = jax.lax.scan(cell, w.shares[share], days.swapaxes(0, 1))
    return h @ w.out


optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=1e-3)


@jax.jit
def train_step(w, state, share, days, target):
    def loss_fn(w):
        return optax.losses.huber_loss(predict(w, share, days), target).mean()

    loss, grads = jax.value_and_grad(loss_fn)(w)
    updates, state = optimizer.update(grads, state, w)
    return optax.apply_updates(w, updates), state, loss


def stalled(losses, recent=20):
    """Whether the last losses are no better than all losses so far."""
    if len(losses) < 2 * recent:
        return False
    if REPAIRED:
        all_losses = np.array(losses)
    else:
        all_losses = jnp.array(losses)
    return bool(all_losses[-recent:].mean() > all_losses.mean() - 0.1 * all_losses.std())


def market(shares=500, days=1500, seed=2):
    rng = np.random.default_rng(seed)
    mood = np.cumsum(rng.normal(0, 0.1, days))
    x = rng.normal(0, 1, (shares, days, 4)).astype(np.float32)
    x[..., 0] += 0.5 * np.sin(mood + np.arange(shares)[:, None])
    return x


def main(steps=200, batch=64, window=40):
    x = market()
    rng = np.random.default_rng(3)
    w = init(jax.random.key(0))
    state = optimizer.init(w)
    losses = []
    start = time.time()
    for step in range(steps):
        share, end = rng.integers(0, len(x), batch), rng.integers(window, x.shape[1], batch)
        days = x[share[:, None], end[:, None] - np.arange(window, 0, -1)]
        w, state, loss = train_step(w, state, share, days, x[share, end, 0])
        losses.append(float(loss) if REPAIRED else loss)
        if stalled(losses) and step % 50 == 49:
            state.hyperparams["learning_rate"] = state.hyperparams["learning_rate"] / 2
        if step % 40 == 0:
            print(f"step {step} loss {float(loss):.4f}")
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
