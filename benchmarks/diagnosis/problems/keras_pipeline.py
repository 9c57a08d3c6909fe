"""Keras's fit on a pipeline of tf.data with a slow map function, or without prefetching."""

import time

import tensorflow as tf
from bench import Run
from tf_parts import batches_of, jit, keras, network, ready

run = Run(steps=120, width=512, batch=128, share=0.5, ahead=1, jit=0, backend=0)
pause = run.pause()


def look_up(values):
    if pause:
        with run.spends("loading"):
            time.sleep(pause + (run.usual() if run.ahead else 0))  # what runs ahead hides behind the step
    return values


def decode(x, y):  # GUILTY
    return tf.ensure_shape(tf.numpy_function(look_up, [x], tf.float32), x.shape), y


model, _ = network(run.width)
model.compile(keras.optimizers.SGD(0.001), "mse", jit_compile=jit(run.jit))
callbacks = ready(run, model)
options = tf.data.Options()
options.experimental_optimization.inject_prefetch = False
data = batches_of(run).map(decode)
with run.training():
    model.fit(data.prefetch(2) if run.ahead else data.with_options(options), verbose=0, callbacks=callbacks)  # LOOP
run.close()
