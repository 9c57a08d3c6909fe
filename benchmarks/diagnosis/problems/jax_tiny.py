"""Steps so small that calling them takes longer than computing; the repaired twin computes many of them in one call."""

import jax
from bench import Run
from jax_parts import network, rows, update

run = Run(lasts=12.0, steps=3000, width=8, batch=4, together=50)
data, labels = rows(run.batch * 8, 8)
train_step = jax.jit(update)
params, state = network(8, run.width)


@jax.jit
def train_steps(params, state, data, labels):
    def single(carry, number):
        at = number % 8 * run.batch
        x = jax.lax.dynamic_slice_in_dim(data, at, run.batch)
        y = jax.lax.dynamic_slice_in_dim(labels, at, run.batch)
        params, state, loss = update(*carry, x, y)
        return (params, state), loss

    (params, state), losses = jax.lax.scan(single, (params, state), jax.numpy.arange(run.together))
    return params, state, losses[-1]


if run.repaired:
    train_steps(params, state, data, labels)  # compiled before the loop
else:
    train_step(params, state, data[: run.batch], labels[: run.batch])
with run.training():
    for number in range(run.steps):  # LOOP
        if run.repaired:
            if number % run.together == 0:
                params, state, loss = train_steps(params, state, data, labels)
                loss.block_until_ready()
            continue
        at = number % 8 * run.batch
        params, state, loss = train_step(params, state, data[at : at + run.batch], labels[at : at + run.batch])
        loss.block_until_ready()
        run.stepped()
run.close()
