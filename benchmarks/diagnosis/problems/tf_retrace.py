"""A step in tf.function that is traced again and again: its arguments differ at each call."""

import tensorflow as tf
from bench import Run
from tf_parts import network, rows, step_of

run = Run(steps=80, width=256, batch=64, shapes=0, lasts=0.1)
step = step_of(*network(run.width))
data, targets = map(tf.constant, rows(run.batch + run.shapes))


@tf.function
def train_step(x, y, number):
    return step(x, y) * tf.cast(number, tf.float32)


with run.training():
    for number in range(run.steps):  # LOOP
        rest = 0 if run.repaired or not run.shapes else number % run.shapes
        factor = tf.constant(number) if run.repaired or run.shapes else number
        train_step(data[rest:], targets[rest:], factor)  # GUILTY: traced for each number or length
        run.stepped()
run.close()
