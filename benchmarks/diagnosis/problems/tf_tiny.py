"""Tiny eager steps: TensorFlow's Python code takes longer than the arithmetic."""

from bench import Run
from tf_parts import batches_of, network, step_of

run = Run(steps=250, width=8, batch=4)
train_step = step_of(*network(run.width))
with run.training():
    for x, y in batches_of(run).prefetch(2):  # LOOP
        train_step(x, y)
        run.stepped()
run.close()
