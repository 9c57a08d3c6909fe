"""A pipeline of tf.data whose map function is slower than the step."""

import time

import tensorflow as tf
from bench import Run
from tf_parts import batches_of, network, step_of

run = Run(steps=120, width=512, batch=64, share=0.5)
pause = run.pause()


def look_up(values):
    if pause:
        with run.spends("loading"):
            time.sleep(pause + run.usual())  # the pipeline runs ahead of the step
    return values


def decode(x, y):  # GUILTY
    found = tf.numpy_function(look_up, [x], tf.float32)
    return tf.ensure_shape(found, x.shape), y


def augment(x, y):
    return x + tf.random.normal(tf.shape(x), stddev=0.01), y


train_step = tf.function(step_of(*network(run.width)))
with run.training():
    for x, y in batches_of(run).map(augment).map(decode):  # LOOP
        train_step(x, y)
        run.stepped()
run.close()
