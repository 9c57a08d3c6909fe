"""A loop that computes, reads its loss now and then, and has batches in memory."""

import jax
from bench import Run
from jax_parts import network, rows, update

run = Run(lasts=12.0, steps=200, width=1024, batch=128)
data, labels = rows(run.batch * 8, 64)
train_step = jax.jit(update)
params, state = network(64, run.width)
losses = []
with run.training():
    for number in range(run.steps):  # LOOP
        at = number % 8 * run.batch
        params, state, loss = train_step(params, state, data[at : at + run.batch], labels[at : at + run.batch])
        if run.repaired:  # whose steps are timed
            loss.block_until_ready()
        if number % 20 == 0:
            losses.append(float(loss))
        run.stepped()
    loss.block_until_ready()
run.close()
