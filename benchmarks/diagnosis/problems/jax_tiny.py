"""Steps so small that calling them takes longer than computing."""

import jax
from bench import Run
from jax_parts import network, rows, update

run = Run(lasts=12.0, steps=3000, width=8, batch=4)
data, labels = rows(run.batch * 8, 8)
train_step = jax.jit(update)
params, state = network(8, run.width)
with run.training():
    for number in range(run.steps):  # LOOP
        at = number % 8 * run.batch
        params, state, loss = train_step(params, state, data[at : at + run.batch], labels[at : at + run.batch])
        loss.block_until_ready()
        run.stepped()
run.close()
