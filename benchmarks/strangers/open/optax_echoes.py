"""How far is the wall? A gated recurrent net listens to echoes: lax.scan, batches on the device, several steps per call."""

import dataclasses
import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class Setup:
    samples: int = 160
    microphones: int = 4
    hidden: int = 96
    batch: int = 48
    steps_per_call: int = 5
    calls: int = 40
    rate: float = 2e-3
    seed: int = 10


class Training(NamedTuple):
    params: optax.Params
    state: optax.OptState
    key: jax.Array


def echoes(setup, key):
    """A click comes back after twice the distance, weaker, with noise; microphones hear it one after another."""
    k1, k2, k3 = jax.random.split(key, 3)
    distance = jax.random.uniform(k1, (setup.batch,), minval=0.1, maxval=1.0)
    delay = distance[:, None] * 120 + jnp.arange(setup.microphones) * jax.random.uniform(k2, (setup.batch, 1), maxval=4)
    t = jnp.arange(setup.samples)[:, None, None]
    wave = jnp.exp(-(((t - delay) / 3) ** 2)) * jnp.cos(t - delay) / (0.3 + distance[:, None])
    return wave + 0.1 * jax.random.normal(k3, wave.shape), distance


def glorot(key, *shape):
    return jax.random.normal(key, shape) * (2 / sum(shape)) ** 0.5


def initial(setup, key):
    k = jax.random.split(key, 4)
    h = setup.hidden
    return {
        "in": glorot(k[0], setup.microphones, 3 * h),
        "rec": glorot(k[1], h, 3 * h),
        "bias": jnp.zeros(3 * h),
        "read": glorot(k[2], h, h),
        "out": glorot(k[3], h, 2),
    }


def listen(params, wave):
    """Mean and log of the deviation of the distance, after the last sample."""

    def cell(h, x):
        a = x @ params["in"] + params["bias"]
        b = h @ params["rec"]
        (r, z, n), (u, v, m) = jnp.split(a, 3, axis=-1), jnp.split(b, 3, axis=-1)
        z = jax.nn.sigmoid(z + v)
        h = z * h + (1 - z) * jnp.tanh(n + jax.nn.sigmoid(r + u) * m)
        return h, None

    start = jnp.zeros((wave.shape[1], params["rec"].shape[0]))
    h, _ = jax.lax.scan(cell, start, wave)
    mean, log_dev = (jax.nn.relu(h @ params["read"]) @ params["out"]).T
    return mean, jnp.clip(log_dev, -4, 2)


def surprise(params, wave, distance):
    mean, log_dev = listen(params, wave)
    return jnp.mean(0.5 * ((distance - mean) * jnp.exp(-log_dev)) ** 2 + log_dev)


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def several_steps(setup, tx, training):
    def one_step(carry, _):
        key, now = jax.random.split(carry.key)
        loss, grads = jax.value_and_grad(surprise)(carry.params, *echoes(setup, now))
        updates, state = tx.update(grads, carry.state, carry.params)
        return Training(optax.apply_updates(carry.params, updates), state, key), loss

    training, losses = jax.lax.scan(one_step, training, length=setup.steps_per_call)
    return training, losses.mean()


def main():
    setup = Setup()
    steps = setup.calls * setup.steps_per_call
    tx = optax.chain(optax.clip(1.0), optax.lion(optax.cosine_decay_schedule(setup.rate / 4, steps), weight_decay=1e-3))
    params = initial(setup, jax.random.key(setup.seed))
    training = Training(params, tx.init(params), jax.random.key(setup.seed + 1))
    began = time.time()
    for call in range(setup.calls):
        training, loss = several_steps(setup, tx, training)
        if call % 10 == 9:
            print(f"{call + 1:3d}: {loss:.3f}", flush=True)
    jax.block_until_ready(training.params)
    print(f"training took {time.time() - began:.2f} s")
    wave, distance = echoes(setup, jax.random.key(0))
    print(f"off by {jnp.abs(listen(training.params, wave)[0] - distance).mean():.3f}")


if __name__ == "__main__":
    main()
