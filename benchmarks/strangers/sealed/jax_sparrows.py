"""How many sparrows are in the hedge? Counts from sound (a spectrum over time), plain JAX with optax.

The rate falls in stages, and the loss goes from squares to absolute values meanwhile.
"""

import os
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

TIMES, BANDS, WIDTH, BATCH = 40, 32, 64, 32
STAGES, STEPS_EACH = 10, 30


class Example(NamedTuple):
    spectrum: jax.Array
    birds: jax.Array


def hedge(count, seed):
    rng = np.random.default_rng(seed)
    birds = rng.integers(0, 25, count)
    sound = 0.3 * rng.random((count, TIMES, BANDS))
    for k in range(count):
        when, pitch = rng.integers(0, TIMES - 4, 2 * birds[k]), rng.integers(4, BANDS - 2, 2 * birds[k])
        for d in range(4):
            sound[k, when + d, np.minimum(pitch + d // 2, BANDS - 1)] += 0.8
    return Example(jnp.asarray(sound, jnp.float32), jnp.asarray(birds, jnp.float32))


def dense(key, inside, outside):
    return {"w": jax.random.normal(key, (inside, outside)) / np.sqrt(inside), "b": jnp.zeros(outside)}


def init(key, blocks=3):
    keys = jax.random.split(key, 4 * blocks + 2)
    parts = [
        {
            "time": [dense(keys[4 * k], TIMES, 2 * TIMES), dense(keys[4 * k + 1], 2 * TIMES, TIMES)],
            "band": [dense(keys[4 * k + 2], WIDTH, 3 * WIDTH), dense(keys[4 * k + 3], 3 * WIDTH, WIDTH)],
        }
        for k in range(blocks)
    ]
    return {"first": dense(keys[-2], BANDS, WIDTH), "blocks": parts, "last": dense(keys[-1], WIDTH, 1)}


def layer(p, x):
    return x @ p["w"] + p["b"]


def norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def predict(params, x):
    h = layer(params["first"], x)
    for block in params["blocks"]:
        mixed = layer(block["time"][1], jax.nn.gelu(layer(block["time"][0], norm(h).swapaxes(1, 2))))
        h = h + mixed.swapaxes(1, 2)
        h = h + layer(block["band"][1], jax.nn.gelu(layer(block["band"][0], norm(h))))
    return 10 + 10 * layer(params["last"], norm(h).mean(1))[:, 0]


def descend(params, state, batch, share, optimizer):
    def loss(params):
        wrong = predict(params, batch.spectrum) - batch.birds
        return (share * jnp.abs(wrong) + (1 - share) * wrong**2 / 5).mean()

    value, grads = jax.value_and_grad(loss)(params)
    change, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, change), state, value


def stage_of_its_own(stage):
    rate, share = 2e-3 * 0.75**stage, stage / STAGES
    return jax.jit(lambda params, state, batch: descend(params, state, batch, share, optax.adamw(rate)))


def one_for_all():
    optimizer = optax.inject_hyperparams(optax.adamw)(learning_rate=2e-3)
    update = jax.jit(lambda params, state, batch, share: descend(params, state, batch, share, optimizer))

    def of_stage(stage):
        def step(params, state, batch):
            state.hyperparams["learning_rate"] = jnp.float32(2e-3 * 0.75**stage)
            return update(params, state, batch, jnp.float32(stage / STAGES))

        return step

    return of_stage, optimizer


def main():
    rng = np.random.default_rng(0)
    data = hedge(3000, 1)
    of_stage, optimizer = stage_of_its_own, optax.adamw(2e-3)
    if os.environ.get("REPAIRED") == "1":
        of_stage, optimizer = one_for_all()
    params = init(jax.random.key(0))
    state = optimizer.init(params)
    begin = time.time()
    for stage in range(STAGES):
        step = of_stage(stage)
        for _ in range(STEPS_EACH):
            rows = rng.integers(0, len(data.birds), BATCH)
            params, state, value = step(params, state, Example(data.spectrum[rows], data.birds[rows]))
        print(f"stage {stage}: {value:.3f}", flush=True)
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
