"""JAX on the GPU: nothing wrong, one step is one call with large products."""

import os

os.environ["JAX_PLATFORMS"] = "cuda,cpu"

import jax
import jax.numpy as jnp
from bench import Run
from jax_parts import network, rows, update

run = Run(lasts=12.0, steps=120, width=8192, batch=8192)
data, labels = (jax.device_put(array) for array in rows(run.batch, 512))
train_step = jax.jit(update)
params, state = network(512, run.width, layers=3)
params = [weights.astype(jnp.bfloat16) for weights in params]
state = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if leaf.ndim else leaf, state)
data = data.astype(jnp.bfloat16)
losses = []
with run.training():
    for number in range(run.steps):  # LOOP
        params, state, loss = train_step(params, state, data, labels)
        if number % 20 == 0:
            losses.append(float(loss))
        run.stepped()
    loss.block_until_ready()
run.close()
