"""Common parts of the planted scripts for TensorFlow and Keras."""

import os
import sys

BACKENDS = ("tensorflow", "jax", "torch")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if "--backend" in sys.argv:
    os.environ["KERAS_BACKEND"] = BACKENDS[int(sys.argv[sys.argv.index("--backend") + 1])]

import keras
import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)  # the machines differ in cores; a step should not
keras.utils.set_random_seed(0)


def rows(count, width=64):
    """Return features and targets."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, width), np.float32)
    return x, x[:, :1]


def network(width, features=64, depth=2):
    """Return a model and its optimizer."""
    layers = [keras.layers.Input((features,)), *[keras.layers.Dense(width, activation="relu") for _ in range(depth)]]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.001)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def jit(wanted):
    """Return Keras's jit_compile: JAX without it runs each operator by itself, and PyTorch's compiler is another case."""
    return {"tensorflow": bool(wanted), "jax": True, "torch": False}[keras.backend.backend()]


def ready(run, model):
    """Build and compile what a step needs, before the loop is timed; return the callbacks of the twin."""

    class Counter(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            run.stepped()

    model.fit(batches_of(run, 1), verbose=0)
    return [Counter()] if run.repaired else []


def step_of(model, optimizer):
    """Return a training step of the two."""

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def batches_of(run, count=None):
    """Return a dataset of the run's steps."""
    x, y = rows(run.batch * 8)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(run.batch).repeat().take(count or run.steps)
