"""A checkpoint of everything every few steps."""

import pickle
import tempfile
from pathlib import Path

import jax
import numpy as np
from bench import Run
from jax_parts import network, rows, update

run = Run(lasts=12.0, steps=800, width=512, batch=64, every=20, share=0.4)
data, labels = rows(run.batch * 8, 64)
train_step = jax.jit(update)
params, state = network(64, run.width)
folder = Path(tempfile.mkdtemp())


def save(tree):
    with (folder / "checkpoint.pickle").open("wb") as file:
        pickle.dump(tree, file)  # GUILTY


host = jax.tree.map(np.asarray, (params, state))
rounds = run.rounds(lambda: save(host), every=run.every)
with run.training():
    for number in range(run.steps):  # LOOP
        at = number % 8 * run.batch
        params, state, loss = train_step(params, state, data[at : at + run.batch], labels[at : at + run.batch])
        loss.block_until_ready()
        if number % run.every == run.every - 1:
            with run.spends("saving"):
                for _ in range(rounds):
                    save(jax.tree.map(np.asarray, (params, state)))  # GUILTY
        run.stepped()
run.close()
