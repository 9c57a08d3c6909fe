"""Metrics on the host at every step, from values that were copied for them."""

import jax
import numpy as np
from bench import Run
from jax_parts import logits, network, rows, update

run = Run(lasts=12.0, steps=800, width=512, batch=64, share=0.5)
data, labels = rows(run.batch * 8, 64)
train_step, forward = jax.jit(update), jax.jit(logits)
params, state = network(64, run.width)


def summarize(values):
    return np.sort(np.asarray(values).ravel()).mean()  # GUILTY


params, state, _ = train_step(params, state, data[: run.batch], labels[: run.batch])
rounds = run.rounds(lambda: summarize(params[1]))
history = []
with run.training():
    for number in range(run.steps):  # LOOP
        at = number % 8 * run.batch
        params, state, loss = train_step(params, state, data[at : at + run.batch], labels[at : at + run.batch])
        loss.block_until_ready()
        with run.spends("metrics"):
            for _ in range(rounds):
                history.append(summarize(params[1]))  # GUILTY
        run.stepped()
run.close()
