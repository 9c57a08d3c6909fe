"""Common parts of the planted scripts for TensorFlow and Keras."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

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


def network(width, features=64):
    """Return a model and its optimizer."""
    layers = [keras.layers.Input((features,)), keras.layers.Dense(width, activation="relu")]
    layers += [keras.layers.Dense(width, activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    optimizer = keras.optimizers.SGD(0.001)
    optimizer.build(model.trainable_variables)
    return model, optimizer


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
