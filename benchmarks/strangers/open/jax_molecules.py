"""Energies of molecules from the positions of their atoms: message passing in JAX, optax's optimizers."""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

ATOMS, KINDS, WIDTH, ROUNDS, BATCH, STEPS = 12, 5, 48, 6, 16, 250


def dense(key, a, b):
    return {"w": jax.random.normal(key, (a, b)) / np.sqrt(a), "b": jnp.zeros(b), "scale": jnp.ones(b)}


def init(key):
    keys = iter(jax.random.split(key, 3 * ROUNDS + 3))
    params = {"kinds": jax.random.normal(next(keys), (KINDS, WIDTH))}
    for r in range(ROUNDS):
        params[f"round{r}"] = {
            "message": dense(next(keys), 2 * WIDTH + 8, WIDTH),
            "gate": dense(next(keys), WIDTH, WIDTH),
            "update": dense(next(keys), 2 * WIDTH, WIDTH),
        }
    params["out"] = [dense(next(keys), WIDTH, WIDTH), dense(next(keys), WIDTH, 1)]
    return params


def apply_dense(p, x):
    return (x @ p["w"] + p["b"]) * p["scale"]


def energy(params, kinds, positions):
    h = params["kinds"][kinds]
    distance = jnp.sqrt(((positions[:, None] - positions[None]) ** 2).sum(-1) + 1e-6)
    edges = jnp.exp(-((distance[..., None] - jnp.linspace(0.5, 4, 8)) ** 2))
    for r in range(ROUNDS):
        p = params[f"round{r}"]
        a = jnp.broadcast_to(h[:, None], (ATOMS, ATOMS, WIDTH))
        b = jnp.broadcast_to(h[None], (ATOMS, ATOMS, WIDTH))
        m = jax.nn.silu(apply_dense(p["message"], jnp.concatenate([a, b, edges], -1))).mean(1)
        m = m * jax.nn.sigmoid(apply_dense(p["gate"], m))
        h = h + jnp.tanh(apply_dense(p["update"], jnp.concatenate([h, m], -1)))
    first, last = params["out"]
    return apply_dense(last, jax.nn.silu(apply_dense(first, h))).sum()


def loss_fn(params, batch):
    predicted = jax.vmap(energy, (None, 0, 0))(params, batch["kinds"], batch["positions"])
    return jnp.mean((predicted - batch["energy"]) ** 2)


optimizer = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, STEPS), weight_decay=1e-4)
)
loss_and_grad = jax.jit(jax.value_and_grad(loss_fn))


def descend(params, state, grads):
    updates, state = optimizer.update(grads, state, params)
    params = optax.apply_updates(params, updates)
    return params, state


if os.environ.get("REPAIRED") == "1":
    descend = jax.jit(descend)


def molecules(seed):
    rng = np.random.default_rng(seed)
    while True:
        positions = rng.normal(0, 1.5, (BATCH, ATOMS, 3)).astype(np.float32)
        spread = (positions**2).sum((1, 2)) / ATOMS
        yield {"kinds": rng.integers(0, KINDS, (BATCH, ATOMS)), "positions": positions, "energy": spread}


params = init(jax.random.PRNGKey(2))
state = optimizer.init(params)
data = molecules(0)
start = time.time()
for step in range(STEPS):
    loss, grads = loss_and_grad(params, next(data))
    params, state = descend(params, state, grads)
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")
jax.block_until_ready(params)
print(f"training took {time.time() - start:.2f} s")
