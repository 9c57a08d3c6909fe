"""Energies of polymers from their positions: message passing over the nearest beads (flax, optax)."""

import os
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

BEADS, NEAR, BATCH, BOX = 48, 8, 24, 6.0
ON_DEVICE = os.environ.get("REPAIRED") == "1"


def nearest_beads(positions):
    found = np.empty((len(positions), BEADS, NEAR), np.int32)
    for chain, where in enumerate(np.asarray(positions)):
        for bead in range(BEADS):
            offset = where - where[bead]
            offset -= BOX * np.round(offset / BOX)
            distance = (offset**2).sum(1)
            distance[bead] = np.inf
            found[chain, bead] = np.argsort(distance)[:NEAR]
    return found


def neighbours(positions):
    if ON_DEVICE:
        offset = positions[:, None, :, :] - positions[:, :, None, :]
        offset -= BOX * jnp.round(offset / BOX)
        distance = (offset**2).sum(-1) + jnp.diag(jnp.full(BEADS, jnp.inf))
        return jax.lax.top_k(-distance, NEAR)[1]
    shape = jax.ShapeDtypeStruct((positions.shape[0], BEADS, NEAR), jnp.int32)
    return jax.pure_callback(nearest_beads, shape, positions)


class Message(nn.Module):
    width: int

    @nn.compact
    def __call__(self, h, near, r):
        other = jax.vmap(lambda a, i: a[i])(h, near)
        own = jnp.broadcast_to(h[:, :, None], other.shape)
        m = nn.silu(nn.Dense(self.width)(jnp.concatenate([own, other, r], -1)))
        m = nn.Dense(self.width)(m).sum(2)
        return h + nn.Dense(self.width)(nn.silu(nn.LayerNorm()(m)))


class Energy(nn.Module):
    width: int = 40
    depth: int = 2

    @nn.compact
    def __call__(self, kinds, positions):
        near = neighbours(positions)
        offset = jax.vmap(lambda p, i: p[i])(positions, near) - positions[:, :, None]
        offset -= BOX * jnp.round(offset / BOX)
        r = jnp.exp(-4 * (jnp.linalg.norm(offset + 1e-6, axis=-1, keepdims=True) - jnp.linspace(0, 3, 12)) ** 2)
        h = nn.Embed(4, self.width)(kinds)
        for _ in range(self.depth):
            h = Message(self.width)(h, near, r)
        return nn.Dense(1)(h)[..., 0].sum(1)


def chains(rng, n=BATCH):
    kinds = rng.integers(0, 4, (n, BEADS))
    positions = np.cumsum(rng.normal(0, 0.5, (n, BEADS, 3)), 1).astype(np.float32) % BOX
    bonds = np.diff(positions, axis=1)
    bonds -= BOX * np.round(bonds / BOX)
    return kinds, positions, (bonds**2).sum((1, 2)) / 10 + (kinds == 1).sum(1) / 10


model = Energy()
rng = np.random.default_rng(6)
params = model.init(jax.random.key(6), *chains(rng)[:2])
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(2e-3))
state = tx.init(params)


@jax.jit
def train_step(params, state, kinds, positions, energy):
    def loss_fn(p):
        return jnp.abs(model.apply(p, kinds, positions) - energy).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, state = tx.update(grads, state)
    return optax.apply_updates(params, updates), state, loss


began = time.perf_counter()
for step in range(1, 251):
    params, state, loss = train_step(params, state, *chains(rng))
    if step % 50 == 0:
        print("step", step, "error", float(loss))
jax.block_until_ready(params)
print(f"training took {time.perf_counter() - began:.2f} s")
