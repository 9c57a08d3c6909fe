"""Learn the Hamiltonian of three bodies: integrate with leapfrog in lax.scan, fit trajectories (jax, optax)."""

import functools
import time

import jax
import jax.numpy as jnp
import optax

BODIES, DIM, DT = 3, 2, 0.02
SIZE = BODIES * DIM


def potential(q):
    q = q.reshape(BODIES, DIM)
    gap = jnp.sqrt(((q[:, None] - q[None]) ** 2).sum(-1) + 0.05)
    return -jnp.triu(1 / gap, 1).sum()


def leapfrog(force, q, p, steps):
    def one(state, _):
        q, p = state
        p = p + 0.5 * DT * force(q)
        q = q + DT * p
        p = p + 0.5 * DT * force(q)
        return (q, p), jnp.concatenate([q, p])

    return jax.lax.scan(one, (q, p), None, length=steps)[1]


@functools.partial(jax.jit, static_argnums=(1, 2))
def true_orbits(key, n, steps):
    a, b = jax.random.split(key)
    q, p = jax.random.normal(a, (n, SIZE)), 0.4 * jax.random.normal(b, (n, SIZE))
    path = jax.vmap(lambda q, p: leapfrog(lambda x: -jax.grad(potential)(x), q, p, steps))(q, p)
    return jnp.concatenate([q, p], 1), path


def init(key, widths):
    keys = jax.random.split(key, len(widths) - 1)
    return [
        (jax.random.normal(k, (i, o)) / jnp.sqrt(i), jnp.zeros(o)) for k, i, o in zip(keys, widths[:-1], widths[1:])
    ]


def learned_potential(params, q):
    *hidden, (w, b) = params
    for u, c in hidden:
        q = jnp.tanh(q @ u + c)
    return (q @ w + b)[0]


def loss_fn(params, start, path):
    def orbit(s):
        return leapfrog(lambda q: -jax.grad(learned_potential, 1)(params, q), s[:SIZE], s[SIZE:], path.shape[1])

    return jnp.mean((jax.vmap(orbit)(start) - path) ** 2)


def main(epochs=5, orbits=2048, batch=128, steps=16):
    start, path = true_orbits(jax.random.key(0), orbits, steps)
    params = init(jax.random.key(1), [SIZE, 160, 160, 1])
    per_epoch = orbits // batch
    schedule = optax.warmup_cosine_decay_schedule(0.0, 2e-3, 10, epochs * per_epoch)
    tx = optax.adamw(schedule, weight_decay=1e-6)
    opt_state = tx.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params, opt_state, start, path):
        loss, grads = jax.value_and_grad(loss_fn)(params, start, path)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    key = jax.random.key(2)
    t0 = time.time()
    for epoch in range(epochs):
        key, use = jax.random.split(key)
        order = jax.random.permutation(use, orbits).reshape(per_epoch, batch)
        losses = []
        for rows in order:
            params, opt_state, loss = update(params, opt_state, start[rows], path[rows])
            losses.append(loss)
        print(f"epoch {epoch}: {jnp.stack(losses).mean():.5f}")
    jax.block_until_ready(params)
    print(f"training took {time.time() - t0:.2f} s")


if __name__ == "__main__":
    main()
