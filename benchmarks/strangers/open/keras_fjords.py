"""Depth of fjords from sonar pings: a temporal network with its own layer, in Keras on TensorFlow."""

import os
import time

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
from keras import layers, ops

PINGS, BEAMS = 32, 12


def voyages(n, seed):
    rng = np.random.default_rng(seed)
    depth = np.cumsum(rng.normal(0, 0.2, (n, PINGS)), 1) + rng.uniform(1, 4, (n, 1))
    angle = np.linspace(-1, 1, BEAMS)
    echo = depth[..., None] / np.cos(angle) + 0.2 * rng.standard_normal((n, PINGS, BEAMS))
    lost = rng.random(echo.shape) < 0.15
    echo[lost] = 0
    return echo.astype("float32"), depth[:, -1:].astype("float32")


class Mixer(layers.Layer):
    """Mix the pings, then the beams, with gates."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.norm2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.time, self.gate = layers.Dense(PINGS), layers.Dense(PINGS, activation="sigmoid")
        self.up, self.down = layers.Dense(2 * width, activation="gelu"), layers.Dense(width)

    def call(self, x):
        y = ops.transpose(self.norm(x), (0, 2, 1))
        x = x + ops.transpose(self.time(y) * self.gate(y), (0, 2, 1))
        return x + self.down(self.up(self.norm2(x)))


def build(width=32, depth=3):
    inputs = keras.Input((PINGS, BEAMS))
    x = layers.Dense(width)(inputs)
    for _ in range(depth):
        x = Mixer(width)(x)
    x = layers.LayerNormalization()(x)
    x = layers.Flatten()(x)
    return keras.Model(inputs, layers.Dense(1)(layers.Dense(32, activation="gelu")(x)))


def main():
    keras.utils.set_random_seed(116)
    x, depth = voyages(3000, 1)
    test_x, test_depth = voyages(500, 2)
    model = build()
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-3),
        loss="huber",
        metrics=["mae"],
        run_eagerly=os.environ.get("REPAIRED") != "1",  # to look into the mixer
    )
    start = time.time()
    model.fit(x, depth, batch_size=32, epochs=1, verbose=2, validation_data=(test_x, test_depth), validation_batch_size=250)
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
