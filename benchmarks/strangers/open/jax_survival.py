"""Survival from gene expression: Cox partial likelihood, a network in plain JAX, Adam by hand, decaying step size."""

import functools
import math
import os
import time

import jax
import jax.numpy as jnp
import numpy as np

GENES, BATCH, STEPS = 1200, 192, 520
STATIC = () if os.environ.get("REPAIRED") == "1" else ("lr",)


def cohort(n=3000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, GENES)).astype(np.float32)
    risk = x[:, :20].sum(1) / 4 + x[:, 20] * x[:, 21]
    months = rng.exponential(np.exp(-risk) * 30)
    censored = rng.exponential(60, n)
    return x, np.minimum(months, censored).astype(np.float32), (months < censored).astype(np.float32)


def init(key, sizes):
    layers = []
    for k, (i, o) in zip(jax.random.split(key, len(sizes)), zip(sizes, sizes[1:])):
        layers.append({"w": jax.random.normal(k, (i, o)) * math.sqrt(2 / i), "b": jnp.zeros(o)})
    return layers


def hazard(layers, x):
    for layer in layers[:-1]:
        x = jax.nn.silu(x @ layer["w"] + layer["b"])
        x = (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5)
    return (x @ layers[-1]["w"] + layers[-1]["b"])[:, 0]


def cox(layers, x, months, died):
    h = hazard(layers, x)
    at_risk = jax.nn.logsumexp(jnp.where(months >= months[:, None], h, -jnp.inf), axis=1)
    return -((h - at_risk) * died).sum() / died.sum()


@functools.partial(jax.jit, static_argnames=STATIC)
def update(layers, m, v, t, x, months, died, lr):
    loss, grads = jax.value_and_grad(cox)(layers, x, months, died)
    m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, m, grads)
    v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g * g, v, grads)
    scale = lr * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    layers = jax.tree.map(lambda p, a, b: p - scale * a / (jnp.sqrt(b) + 1e-8), layers, m, v)
    return layers, m, v, loss


def step_size(step):
    return round(1e-3 * 0.5 ** (step // 80), 9)


def main():
    x, months, died = cohort()
    layers = init(jax.random.key(0), [GENES, 256, 128, 64, 1])
    m = jax.tree.map(jnp.zeros_like, layers)
    v = jax.tree.map(jnp.zeros_like, layers)
    rng = np.random.default_rng(1)
    start = time.time()
    for step in range(STEPS):
        rows = rng.choice(len(x), BATCH, replace=False)
        layers, m, v, loss = update(
            layers, m, v, step + 1.0, x[rows], months[rows], died[rows], lr=step_size(step)
        )
        if step % 104 == 103:
            print(f"{step + 1}: partial likelihood {float(loss):.4f}")
    jax.block_until_ready(layers)
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
