"""Small magnets on a lattice: a flow of coupling layers learns to draw states of the XY model (from its energy)."""

from __future__ import annotations

import argparse
import functools
import time

import jax
import jax.numpy as jnp
import optax

Params = list[dict[str, list[tuple[jax.Array, jax.Array]]]]


def board(side: int, odd: int) -> jax.Array:
    return ((jnp.arange(side)[:, None] + jnp.arange(side) + odd) % 2).astype(jnp.float32)


def convolution(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    """Around the edges of the lattice, as it is periodic."""
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="wrap")
    return jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")) + b


def initial(key: jax.Array, couplings: int, width: int) -> Params:
    params = []
    for key in jax.random.split(key, couplings):
        layers, cin = [], 2
        for key, cout in zip(jax.random.split(key, 3), (width, width, 2)):
            scale = (0.01 if cout == 2 else 1.4) / (9 * cin) ** 0.5
            layers.append((scale * jax.random.normal(key, (3, 3, cin, cout)), jnp.zeros(cout)))
            cin = cout
        params.append({"layers": layers})
    return params


def draw(params: Params, key: jax.Array, count: int, side: int) -> tuple[jax.Array, jax.Array]:
    """States and the logarithm of their density; each coupling moves every other magnet of the board."""
    z = jax.random.uniform(key, (count, side, side), minval=-jnp.pi, maxval=jnp.pi)
    log_q = -side * side * jnp.log(2 * jnp.pi) * jnp.ones(count)
    for number, part in enumerate(params):
        still = board(side, number)
        h = jnp.stack([jnp.sin(z) * still, jnp.cos(z) * still], 3)
        for w, b in part["layers"][:-1]:
            h = jax.nn.gelu(convolution(h, w, b))
        bend, turn = jnp.moveaxis(convolution(h, *part["layers"][-1]), 3, 0)
        bend = jnp.tanh(bend)
        around = 2 * jnp.arctan(jnp.exp(bend) * jnp.tan(z / 2))
        slope = 1 / (jnp.exp(-bend) * jnp.cos(z / 2) ** 2 + jnp.exp(bend) * jnp.sin(z / 2) ** 2)
        moved = (around + turn + jnp.pi) % (2 * jnp.pi) - jnp.pi
        z = still * z + (1 - still) * moved
        log_q -= ((1 - still) * jnp.log(slope)).sum((1, 2))
    return z, log_q


def energy(z: jax.Array) -> jax.Array:
    return -sum(jnp.cos(z - jnp.roll(z, 1, axis)).sum((1, 2)) for axis in (1, 2))


def free_energy(params: Params, key: jax.Array, beta: float, count: int, side: int) -> jax.Array:
    z, log_q = draw(params, key, count, side)
    return (log_q + beta * energy(z)).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=12)
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--couplings", type=int, default=6)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--beta", type=float, default=0.7)
    parser.add_argument("--updates", type=int, default=150)
    args = parser.parse_args()
    optimizer = optax.chain(optax.clip_by_global_norm(5.0), optax.adam(optax.cosine_decay_schedule(2e-3, args.updates)))
    free = functools.partial(free_energy, beta=args.beta, count=args.samples, side=args.side)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params, state, key):
        value, grads = jax.value_and_grad(free)(params, key)
        change, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, change), state, value

    params = initial(jax.random.key(1), args.couplings, args.width)
    state = optimizer.init(params)
    begin = time.perf_counter()
    for number, key in enumerate(jax.random.split(jax.random.key(2), args.updates), 1):
        params, state, value = update(params, state, key)
        if number % 30 == 0:
            print(f"update {number}: free energy per magnet {value / args.side**2:.4f}", flush=True)
    jax.block_until_ready(params)
    print(f"training took {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
