"""Forecast the yield of fields from satellite series: attention over a season in plain JAX, optax with weight averaging."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

WEEKS, BANDS, D, HEADS, DEPTH = 52, 8, 128, 4, 3


def fields(n, seed):
    rng = np.random.default_rng(seed)
    week = np.arange(WEEKS)
    peak, width, height = rng.normal(26, 4, (n, 1)), rng.uniform(5, 10, (n, 1)), rng.lognormal(0, 0.25, (n, 1))
    green = height * np.exp(-(((week - peak) / width) ** 2))
    x = green[..., None] * np.linspace(-1, 1, BANDS) + rng.normal(0, 0.15, (n, WEEKS, BANDS))
    cloudy = rng.random((n, WEEKS)) < 0.2
    x[cloudy] = 1.5
    tons = 3 * (green[:, 18:34]).mean(1) + 0.1 * (peak[:, 0] - 26) + rng.normal(0, 0.1, n)
    return x.astype("float32"), tons.astype("float32")


def init(key):
    def dense(key, a, b):
        return jax.random.truncated_normal(key, -2, 2, (a, b)) / a**0.5

    k = iter(jax.random.split(key, 3 + 4 * DEPTH))
    params = {"embed": dense(next(k), BANDS, D), "week": 0.02 * jax.random.normal(next(k), (WEEKS, D)), "out": dense(next(k), D, 1)}
    params["blocks"] = [
        {"qkv": dense(next(k), D, 3 * D), "mix": dense(next(k), D, D), "up": dense(next(k), D, 4 * D),
         "down": dense(next(k), 4 * D, D), "gain": jnp.ones((2, D))}
        for _ in range(DEPTH)
    ]  # fmt: skip
    return params


def rms(x, gain):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * gain


def forward(params, x):
    h = x @ params["embed"] + params["week"]
    for p in params["blocks"]:
        qkv = (rms(h, p["gain"][0]) @ p["qkv"]).reshape(*h.shape[:2], 3, HEADS, D // HEADS)
        y = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2])
        h = h + y.reshape(h.shape) @ p["mix"]
        h = h + jax.nn.gelu(rms(h, p["gain"][1]) @ p["up"]) @ p["down"]
    return (h.mean(1) @ params["out"]).squeeze(-1)


def loss_fn(params, x, tons):
    return jnp.mean(optax.huber_loss(forward(params, x), tons))


tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 140), weight_decay=0.02))


@functools.partial(jax.jit, donate_argnums=(0, 1, 2))
def train_step(params, average, opt_state, x, tons):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, tons)
    updates, opt_state = tx.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return params, optax.incremental_update(params, average, 0.02), opt_state, loss


def main(steps=140, batch=32):
    x, tons = fields(6000, 0)
    held_x, held_tons = fields(512, 1)
    params = init(jax.random.key(0))
    average = jax.tree.map(jnp.copy, params)
    opt_state = tx.init(params)
    error = jax.jit(lambda p: jnp.abs(forward(p, held_x) - held_tons).mean())
    rng = np.random.default_rng(2)
    start = time.perf_counter()
    for step in range(steps):
        rows = rng.choice(len(x), batch, replace=False)
        params, average, opt_state, loss = train_step(params, average, opt_state, x[rows], tons[rows])
        if (step + 1) % 70 == 0:
            print(f"step {step + 1}: loss {float(loss):.4f}, held out {float(error(average)):.3f} tons", flush=True)
    jax.block_until_ready(params)
    print(f"training took {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
