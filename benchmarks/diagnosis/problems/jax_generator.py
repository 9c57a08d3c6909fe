"""The script's own generator makes the batches, slower than the step in JAX."""

import time

import jax
from bench import Run
from jax_parts import network, rows, update

run = Run(lasts=12.0, steps=800, width=512, batch=64, share=0.5)
data, labels = rows(run.batch * 8, 64)
pause = run.pause()


def batches():
    for number in range(run.steps):
        at = number % 8 * run.batch
        if pause:
            with run.spends("loading"):
                time.sleep(pause)  # GUILTY
        yield data[at : at + run.batch], labels[at : at + run.batch]


train_step = jax.jit(update)
params, state = network(64, run.width)
train_step(params, state, data[: run.batch], labels[: run.batch])  # compiled before the loop
with run.training():
    for x, y in batches():  # LOOP
        params, state, loss = train_step(params, state, x, y)
        loss.block_until_ready()
        run.stepped()
run.close()
