"""Complete the scans of broken bones: a point cloud of a fragment goes in, the whole bone comes out. Keras on JAX, Chamfer distance."""

import os
import time

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras import layers, ops

SEEN, WHOLE = 96, 256


def bones(n, seed):
    """A shaft, two ends, both of different size; a plane cuts the fragment off."""
    rng = np.random.default_rng(seed)
    t, a = rng.uniform(-1, 1, (n, WHOLE)), rng.uniform(0, 2 * np.pi, (n, WHOLE))
    shaft, left, right, bend = rng.uniform(0.1, 0.2, (n, 1)), *rng.uniform(0.2, 0.5, (2, n, 1)), rng.normal(0, 0.2, (n, 1))
    radius = shaft + left * np.exp(-(((t + 1) / 0.2) ** 2)) + right * np.exp(-(((t - 1) / 0.3) ** 2))
    whole = np.stack([t, radius * np.cos(a) + bend * t**2, radius * np.sin(a)], -1).astype(np.float32)
    whole += rng.normal(0, 0.01, whole.shape).astype(np.float32)
    order = np.argsort(whole[..., 0] + rng.normal(0, 0.1, (n, WHOLE)), axis=1)[:, :SEEN]
    return np.take_along_axis(whole, order[..., None], 1), whole


def chamfer(whole, guess):
    """Mean distance of each point to the nearest of the other cloud, in both directions."""
    square = ops.sum(whole**2, -1)[:, :, None] + ops.sum(guess**2, -1)[:, None, :]
    distance = ops.relu(square - 2 * ops.matmul(whole, ops.transpose(guess, (0, 2, 1))))
    return ops.mean(ops.min(distance, axis=2), axis=1) + ops.mean(ops.min(distance, axis=1), axis=1)


def repulsion(guess, near=0.05):
    square = ops.sum(guess**2, -1)
    distance = square[:, :, None] + square[:, None, :] - 2 * ops.matmul(guess, ops.transpose(guess, (0, 2, 1)))
    return ops.mean(ops.relu(near - ops.sqrt(ops.relu(distance) + 1e-6)), axis=(1, 2))


def loss(whole, guess):
    return chamfer(whole, guess) + 0.1 * repulsion(guess)


def completer():
    cloud = keras.Input((SEEN, 3))
    x = layers.Dense(64, activation="gelu")(cloud)
    x = layers.Dense(128, activation="gelu")(x)
    code = layers.GlobalMaxPooling1D()(x)
    x = layers.Concatenate()([x, layers.RepeatVector(SEEN)(code)])
    x = layers.Dense(192, activation="gelu")(x)
    code = layers.LayerNormalization()(layers.GlobalMaxPooling1D()(x))
    x = layers.Dense(384, activation="gelu")(code)
    return keras.Model(cloud, layers.Reshape((WHOLE, 3))(layers.Dense(WHOLE * 3)(x)))


class Progress(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch}: " + ", ".join(f"{k} {v:.4f}" for k, v in logs.items()), flush=True)


def main(epochs=5, batch=32):
    keras.utils.set_random_seed(33)
    seen, whole = bones(1152, 1)
    held_out = bones(96, 2)
    model = completer()
    model.compile(optimizer=keras.optimizers.Adam(1e-3, global_clipnorm=1.0), loss=loss)
    start = time.time()
    model.fit(seen, whole, batch_size=batch, epochs=epochs, validation_data=held_out, verbose=0, callbacks=[Progress()])
    model.save_weights("bones.weights.h5")
    print(f"training took {time.time() - start:.2f} s")


main()
