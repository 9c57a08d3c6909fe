"""Keras compiles again and again: the script compiles the model at each step, or each batch has another length."""

from bench import Run
from tf_parts import jit, network, rows

run = Run(steps=60, width=128, batch=64, shapes=0, jit=0, backend=0, lasts=0.1)
model, _ = network(run.width)
x, y = rows(run.batch + run.shapes)
with run.training():
    for number in range(run.steps):  # LOOP
        if number == 0 or not (run.repaired or run.shapes):
            model.compile("sgd", "mse", jit_compile=jit(run.jit))
        rest = 0 if run.repaired or not run.shapes else number % run.shapes
        model.train_on_batch(x[rest:], y[rest:])  # GUILTY: compiled for each length, or after each `compile`
        run.stepped()
run.close()
