"""Where is north? A compass on a ship swings; a net reads some seconds of it and says where it will rest. Plain JAX."""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np

TIMES, WIDTH, BATCH, STEPS = 24, 128, 64, 250


def swings(rng, count):
    """A damped needle that is driven by the rolling of the ship."""
    north = rng.uniform(-1, 1, count)
    angle, speed = rng.uniform(-1.5, 1.5, count), rng.normal(size=count)
    phase, roll = rng.uniform(0, 6, count), rng.uniform(0.05, 0.4, count)
    seen = np.zeros((count, TIMES, 3), np.float32)
    for t in range(TIMES):
        push = roll * np.sin(0.25 * t + phase)
        speed = 0.97 * speed + 0.1 * (np.sin(north - angle) + push)
        angle = angle + 0.1 * speed
        seen[:, t] = np.stack([np.sin(angle), np.cos(angle), push + 0.05 * rng.normal(size=count)], 1)
    return seen, np.stack([np.sin(north), np.cos(north)], 1).astype(np.float32)


def initial(key):
    def dense(key, n, m):
        return {"w": jax.random.normal(key, (n, m)) / n**0.5, "b": jnp.zeros(m)}

    keys = jax.random.split(key, 5)
    return {
        "first": [dense(keys[0], 3 + WIDTH, 3 * WIDTH), dense(keys[1], WIDTH, WIDTH)],
        "second": [dense(keys[2], 2 * WIDTH, 3 * WIDTH), dense(keys[3], WIDTH, WIDTH)],
        "out": dense(keys[4], WIDTH, 2),
    }


def linear(p, x):
    return x @ p["w"] + p["b"]


def cell(p, h, x):
    reset, update, new = jnp.split(linear(p[0], jnp.concatenate([x, h], 1)), 3, 1)
    reset, update = jax.nn.sigmoid(reset), jax.nn.sigmoid(update)
    new = jnp.tanh(new + linear(p[1], reset * h))
    return update * h + (1 - update) * new


def tick(params, state, x):
    h = cell(params["first"], state[0], x)
    return h, cell(params["second"], state[1], h)


def read(params, x):
    state = (jnp.zeros((len(x), WIDTH)), jnp.zeros((len(x), WIDTH)))
    if os.environ.get("REPAIRED") == "1":
        state, _ = jax.lax.scan(lambda s, now: (tick(params, s, now), None), state, x.swapaxes(0, 1))
    else:
        for t in range(TIMES):
            state = tick(params, state, x[:, t])
    return linear(params["out"], state[1])


def loss_of(params, x, north):
    return jnp.square(read(params, x) - north).sum(1).mean()


@jax.jit
def update(params, m, v, t, x, north):
    loss, g = jax.value_and_grad(loss_of)(params, x, north)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
    size = 1e-3 * jnp.sqrt(1 - 0.99**t) / (1 - 0.9**t)
    params = jax.tree.map(lambda p, m, v: p - size * m / (jnp.sqrt(v) + 1e-8), params, m, v)
    return params, m, v, loss


if __name__ == "__main__":
    rng = np.random.default_rng(360)
    x, north = swings(rng, 8000)
    params = initial(jax.random.key(0))
    m = v = jax.tree.map(jnp.zeros_like, params)
    begin = time.time()
    for step in range(1, STEPS + 1):
        rows = rng.integers(0, len(x), BATCH)
        params, m, v, loss = update(params, m, v, step, x[rows], north[rows])
        if step % 50 == 0:
            print(f"step {step}: {loss:.4f}", flush=True)
    jax.block_until_ready(params)
    print(f"training took {time.time() - begin:.2f} s")
