"""Count of pollen from the weather and the calendar: an MLP for a mixture of Poisson distributions, JAX without a library."""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

SIZES = (32, 384, 384, 384)
SPECIES, PARTS, BATCH = 10, 3, 128


def init(key):
    keys = jax.random.split(key, len(SIZES))
    layers = [
        {"w": jax.random.normal(k, (a, b)) * (2 / a) ** 0.5, "b": jnp.zeros(b)} for k, a, b in zip(keys, SIZES, SIZES[1:])
    ]
    return {"layers": layers, "out": 0.01 * jax.random.normal(keys[-1], (SIZES[-1], SPECIES * PARTS * 2))}


def forward(params, x):
    for layer in params["layers"]:
        x = jax.nn.gelu(x @ layer["w"] + layer["b"])
    rate, share = jnp.split((x @ params["out"]).reshape(-1, SPECIES, PARTS * 2), 2, axis=-1)
    return rate + jnp.arange(PARTS) * 1.5, jax.nn.log_softmax(share)


def loss_fn(params, x, count):
    rate, share = forward(params, x)
    log_p = count[..., None] * rate - jnp.exp(rate) - jax.scipy.special.gammaln(count + 1)[..., None]
    return -jax.scipy.special.logsumexp(log_p + share, axis=-1).mean()


@partial(jax.jit, donate_argnums=(0, 1))
def step(params, moments, key, i, days, counts):
    rows = jax.random.randint(jax.random.fold_in(key, i), (BATCH,), 0, len(days))
    loss, grads = jax.value_and_grad(loss_fn)(params, days[rows], counts[rows])
    t = i + 1.0
    rate = 1e-3 * jnp.minimum(1.0, t / 100)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], grads)
    scale = jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    params = jax.tree.map(lambda p, m, v: p - rate * scale * m / (jnp.sqrt(v) + 1e-8), params, m, v)
    return params, (m, v), loss


def pollen(n, seed):
    rng = np.random.default_rng(seed)
    weather = rng.normal(0, 1, (n, SIZES[0])).astype(np.float32)
    season = np.sin(weather[:, :1] * 2 + np.linspace(0, 6, SPECIES))
    dry = np.tanh(weather[:, 1:2] - weather[:, 2:3] * weather[:, 3:4])
    return weather, rng.poisson(np.exp(1 + season + dry * (rng.random((n, 1)) < 0.7))).astype(np.float32)


def main(steps=2800):
    days, counts = map(jax.device_put, pollen(40_000, 0))
    test = pollen(2000, 1)
    params = init(jax.random.key(4))
    zeros = partial(jax.tree.map, jnp.zeros_like)
    moments = zeros(params), zeros(params)
    key, held_out = jax.random.key(5), jax.jit(loss_fn)
    start = time.perf_counter()
    for i in range(steps):
        params, moments, loss = step(params, moments, key, i, days, counts)
        if i % 400 == 399:
            print(f"step {i + 1}: {loss:.4f}, of other years {held_out(params, *test):.4f}", flush=True)
    jax.block_until_ready(params)
    print(f"training took {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
