"""A whole epoch in one function, fed by a slow generator."""

import time

import tensorflow as tf
from bench import Run
from tf_parts import network, rows, step_of

run = Run(steps=120, width=512, batch=64, share=0.5)
pause = run.pause() + (0 if run.repaired else run.usual())
data, targets = rows(run.batch)
step = step_of(*network(run.width))


def records():  # GUILTY
    for _ in range(run.steps):
        if pause:
            time.sleep(pause)
        yield data, targets


@tf.function
def epoch(dataset):
    for x, y in dataset:
        step(x, y)


signature = tuple(tf.TensorSpec(array.shape, tf.float32) for array in (data, targets))
with run.training():
    epoch(iter(tf.data.Dataset.from_generator(records, output_signature=signature)))  # LOOP
run.close()
