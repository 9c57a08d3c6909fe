"""A step in tf.function, fed by a pipeline that is fast enough."""

import tensorflow as tf
from bench import Run
from tf_parts import batches_of, network, step_of

run = Run(steps=150, width=1024, batch=256)
train_step = tf.function(step_of(*network(run.width)))
with run.training():
    for x, y in batches_of(run).prefetch(2):  # LOOP
        train_step(x, y)
        run.stepped()
run.close()
