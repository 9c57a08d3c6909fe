"""Polar of a glider from logged flights: a neural differential equation, Runge-Kutta in lax.scan, optax."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

STATE, WIDTH, SECONDS, BATCH = 5, 96, 40, 128
EPOCHS, FLIGHTS, CALL = 9, 5120, 4


def network(key):
    sizes = [STATE + 1, WIDTH, WIDTH, STATE]
    keys = jax.random.split(key, 3)
    return [(jax.random.normal(k, (a, b)) / a**0.5, jnp.zeros(b)) for k, a, b in zip(keys, sizes, sizes[1:])]


def slope(params, state, stick):
    x = jnp.concatenate([state, stick[:, None]], 1)
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return 0.1 * (x @ w + b)


def physics(_, state, stick):
    """Speed, path angle, height, pitch and its rate, all scaled."""
    v, angle, height, pitch, rate = state.T
    lift = 0.8 * (pitch - angle) * (1 + v)
    return 0.1 * jnp.stack([-0.2 * v - jnp.sin(angle), lift - 0.3 * v, jnp.sin(angle) * (1 + v),
                            rate, stick - rate - 0.5 * (pitch - angle)], 1)


@functools.partial(jax.jit, static_argnums=0)
def fly(f, params, begin, sticks):
    def second(state, stick):
        a = f(params, state, stick)
        b = f(params, state + 0.5 * a, stick)
        c = f(params, state + 0.5 * b, stick)
        d = f(params, state + c, stick)
        state = state + (a + 2 * b + 2 * c + d) / 6
        return state, state

    return jax.lax.scan(second, begin, sticks.T)[1]


def main():
    key = jax.random.key(120)
    begin = 0.3 * jax.random.normal(key, (FLIGHTS, STATE))
    sticks = jnp.cumsum(0.2 * jax.random.normal(jax.random.key(1), (FLIGHTS, SECONDS)), 1)
    logged = fly(physics, None, begin, sticks)
    logged = logged + 0.02 * jax.random.normal(jax.random.key(2), logged.shape)
    held_out, train = slice(0, 256), np.arange(256, FLIGHTS)
    params = network(jax.random.key(3))
    total = EPOCHS * (len(train) // BATCH)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(3e-3, total)))
    state = tx.init(params)

    def loss_of(params, begin, sticks, logged):
        return jnp.mean((fly(slope, params, begin, sticks) - logged) ** 2)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def steps(params, state, rows):
        def one(carry, rows):
            params, state = carry
            loss, gradient = jax.value_and_grad(loss_of)(params, begin[rows], sticks[rows], logged[:, rows])
            updates, state = tx.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), loss

        (params, state), losses = jax.lax.scan(one, (params, state), rows)
        return params, state, losses.mean()

    rng = np.random.default_rng(0)
    start = time.perf_counter()
    for epoch in range(EPOCHS):
        order = rng.permutation(train)[: len(train) // (BATCH * CALL) * BATCH * CALL]
        for rows in order.reshape(-1, CALL, BATCH):
            params, state, loss = steps(params, state, rows)
        error = loss_of(params, begin[held_out], sticks[held_out], logged[:, held_out])
        print(f"epoch {epoch}: {float(loss):.5f}, held out {float(error):.5f}", flush=True)
    print(f"training took {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
