"""Order fossils by age from sequences of sediment layers: an attention model in plain JAX, cores of every length."""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np

MINERALS, D, BATCH, STEPS = 40, 64, 16, 90


def cores(n, seed):
    rng = np.random.default_rng(seed)
    trend = np.random.default_rng(0).normal(size=MINERALS)
    found = []
    for length in rng.integers(20, 76, n):
        layers = rng.integers(1, MINERALS, length)
        weight = np.linspace(1, 0.2, length)
        found.append((layers, float((trend[layers] * weight).sum() / weight.sum())))
    return found


def padded(batch):
    longest = max(len(layers) for layers, _ in batch)
    if os.environ.get("REPAIRED") == "1":
        longest = -(-longest // 32) * 32
    ids = np.zeros((len(batch), longest), np.int32)
    for row, (layers, _) in zip(ids, batch):
        row[: len(layers)] = layers
    return ids, np.array([age for _, age in batch], np.float32)


def initial(key, depth=2):
    keys = iter(jax.random.split(key, 2 + 4 * depth))

    def matrix(a, b):
        return jax.random.normal(next(keys), (a, b)) / a**0.5

    blocks = [{"qkv": matrix(D, 3 * D), "out": matrix(D, D), "up": matrix(D, 2 * D), "down": matrix(2 * D, D)}
              for _ in range(depth)]
    return {"embedding": matrix(MINERALS, D), "blocks": blocks, "age": matrix(D, 1)}


def norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)


def predict(params, ids):
    real = ids > 0
    place = jnp.arange(ids.shape[1])[:, None] / 50.0 * jnp.arange(1, D + 1) / D
    x = params["embedding"][ids] + jnp.sin(place)
    for block in params["blocks"]:
        q, k, v = (part.reshape(*ids.shape, 4, D // 4) for part in jnp.split(norm(x) @ block["qkv"], 3, -1))
        score = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (D // 4) ** 0.5
        score = jnp.where(real[:, None, None, :], score, -1e9)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(score), v).reshape(x.shape) @ block["out"]
        x = x + jax.nn.gelu(norm(x) @ block["up"]) @ block["down"]
    pooled = (x * real[..., None]).sum(1) / real.sum(1, keepdims=True)
    return (pooled @ params["age"]).squeeze(-1)


@jax.jit
def step(params, state, t, ids, age):
    loss, gradient = jax.value_and_grad(lambda p: jnp.mean((predict(p, ids) - age) ** 2))(params)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state[0], gradient)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state[1], gradient)
    scale = 2e-3 * jnp.sqrt(1 - 0.99**t) / (1 - 0.9**t)
    return jax.tree.map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-8), params, m, v), (m, v), loss


def main():
    rng = np.random.default_rng(118)
    data = cores(3000, 1)
    params = initial(jax.random.key(3))
    state = (jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))
    begin = time.perf_counter()
    for t in range(1, STEPS + 1):
        ids, age = padded([data[i] for i in rng.integers(0, len(data), BATCH)])
        params, state, loss = step(params, state, float(t), ids, age)
        if t % 20 == 0:
            print(f"step {t}: {float(loss):.4f}", flush=True)
    print(f"training took {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
