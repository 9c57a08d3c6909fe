"""A Python loop over many layers inside jax.jit: compiling takes longer than training."""

import jax
from bench import Run
from jax_parts import network, rows, update

run = Run(lasts=0.0, steps=60, width=64, batch=32, layers=600)
data, labels = rows(run.batch * 8, 64)
train_step = jax.jit(update)
params, state = network(64, 1024) if run.repaired else network(64, run.width, run.layers)
with run.training():
    for number in range(run.steps):  # LOOP
        at = number % 8 * run.batch
        params, state, loss = train_step(params, state, data[at : at + run.batch], labels[at : at + run.batch])
        loss.block_until_ready()
        run.stepped()
run.close()
