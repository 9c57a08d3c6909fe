"""jax.jit with batches of ever new lengths."""

import jax
from bench import Run
from jax_parts import network, rows, update

run = Run(lasts=12.0, steps=400, width=256, batch=64, shapes=40)
train_step = jax.jit(update)
params, state = network(64, run.width)
data, labels = rows(run.batch + run.shapes, 64)
train_step(params, state, data[: run.batch], labels[: run.batch])  # what compiling once takes is no gain
with run.training():
    for number in range(run.steps):  # LOOP
        length = run.batch if run.repaired else run.batch + number % run.shapes
        x, y = data[:length], labels[:length]
        params, state, loss = train_step(params, state, x, y)  # GUILTY: compiled for every length
        loss.block_until_ready()
        run.stepped()
run.close()
