"""Moor a zeppelin in gusts of wind: the simulation is differentiable, so the policy learns through it (lax.scan, optax)."""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

DT, HORIZON, SHIPS, UPDATES = 0.2, 60, 256, 130


class Ship(NamedTuple):
    place: jax.Array
    speed: jax.Array
    heading: jax.Array
    turning: jax.Array
    gust: jax.Array


def launch(key, count):
    keys = jax.random.split(key, 4)
    return Ship(
        place=jax.random.uniform(keys[0], (count, 2), minval=-30, maxval=30),
        speed=jax.random.normal(keys[1], (count, 2)),
        heading=jax.random.uniform(keys[2], (count,), maxval=2 * jnp.pi),
        turning=jnp.zeros(count),
        gust=jax.random.normal(keys[3], (count, 2)),
    )


def fly(ship, action, noise):
    thrust, rudder = jnp.tanh(action[:, 0]), jnp.tanh(action[:, 1])
    nose = jnp.stack([jnp.cos(ship.heading), jnp.sin(ship.heading)], 1)
    air = ship.speed - ship.gust
    pace = jnp.sqrt((air**2).sum(1) + 1e-6)
    along = (air * nose).sum(1)
    drag = 0.05 * pace[:, None] * air + 0.15 * (air - along[:, None] * nose)
    speed = ship.speed + DT * (2 * thrust[:, None] * nose - drag)
    turning = ship.turning + DT * (0.4 * rudder * (0.3 + 0.1 * pace) - 0.5 * ship.turning)
    gust = 0.98 * ship.gust + 0.15 * noise
    return Ship(ship.place + DT * speed, speed, ship.heading + DT * turning, turning, gust)


def view(ship):
    nose = jnp.stack([jnp.cos(ship.heading), jnp.sin(ship.heading)], 1)
    return jnp.concatenate([ship.place / 20, ship.speed / 3, nose, ship.turning[:, None], ship.gust], 1)


def initial(key, sizes=(9, 128, 128, 2)):
    layers = []
    for key, cin, cout in zip(jax.random.split(key, len(sizes) - 1), sizes[:-1], sizes[1:]):
        layers.append((jax.random.normal(key, (cin, cout)) / cin**0.5, jnp.zeros(cout)))
    return layers


def policy(layers, x):
    for w, b in layers[:-1]:
        x = jax.nn.silu(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


def cost(layers, key):
    start, blow = jax.random.split(key)
    noise = jax.random.normal(blow, (HORIZON, SHIPS, 2))

    def tick(ship, noise):
        action = policy(layers, view(ship))
        ship = fly(ship, action, noise)
        distance = jnp.sqrt((ship.place**2).sum(1) + 1)
        return ship, distance.mean() + 0.01 * (action**2).mean()

    ship, costs = jax.lax.scan(tick, launch(start, SHIPS), noise)
    return costs.mean() + 0.3 * jnp.sqrt((ship.speed**2).sum(1) + 1e-6).mean()


def main():
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.warmup_cosine_decay_schedule(0, 3e-3, 20, UPDATES))
    )
    key = jax.random.key(1900)
    layers = initial(key)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(layers, state, key):
        value, gradient = jax.value_and_grad(cost)(layers, key)
        change, state = optimizer.update(gradient, state)
        return optax.apply_updates(layers, change), state, value

    state = optimizer.init(layers)
    begin = time.perf_counter()
    for number in range(1, UPDATES + 1):
        key, now = jax.random.split(key)
        layers, state, value = update(layers, state, now)
        if number % 25 == 0:
            print(f"update {number}: cost {float(value):.2f}", flush=True)
    jax.block_until_ready(layers)
    print(f"training took {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
