"""A step in JAX that is not compiled, or of which only the gradients are."""

import jax
import numpy as np
import optax
from bench import Run
from jax_parts import OPTIMIZER, logits, network, rows, update

run = Run(lasts=6.0, steps=250, width=64, batch=32, layers=3, part=0)
data, labels = rows(run.batch * 8, 64)
params, state = network(64, run.width, run.layers)


def loss_of(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()


train_step, gradients_of = jax.jit(update), jax.value_and_grad(loss_of)
if run.part:
    gradients_of = jax.jit(gradients_of)
train_step(params, state, data[: run.batch], labels[: run.batch])  # compiled before the loop
with run.training():
    for number in range(run.steps):  # LOOP
        at = number % 8 * run.batch
        x, y = data[at : at + run.batch], labels[at : at + run.batch]
        if run.repaired:
            params, state, loss = train_step(params, state, x, y)
        else:
            loss, gradients = gradients_of(params, x, y)
            updates, state = OPTIMIZER.update(gradients, state, params)
            params = optax.apply_updates(params, updates)
        np.asarray(loss)
        run.stepped()
run.close()
