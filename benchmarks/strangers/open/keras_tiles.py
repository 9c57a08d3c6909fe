"""Glazed tiles from old houses: a small ConvMixer in Keras on PyTorch, mix-up, cosine decay, the best weights are kept."""

import os
import time

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
from keras import layers, ops

PATTERNS, SIDE = 10, 32


class Tiles(keras.utils.PyDataset):
    """Batches of tiles, two of them mixed in each picture."""

    def __init__(self, pictures, patterns, batch, mix, **kwargs):
        super().__init__(**kwargs)
        self.pictures, self.patterns, self.batch, self.mix = pictures, patterns, batch, mix
        self.rng = np.random.default_rng(0)
        self.on_epoch_end()

    def __len__(self):
        return len(self.pictures) // self.batch

    def __getitem__(self, index):
        rows = self.order[index * self.batch : (index + 1) * self.batch]
        x, y = self.pictures[rows], self.patterns[rows]
        if self.mix:
            share = self.rng.beta(0.2, 0.2, self.batch).astype(np.float32)
            x = share[:, None, None, None] * x + (1 - share[:, None, None, None]) * x[::-1]
            y = share[:, None] * y + (1 - share[:, None]) * y[::-1]
        return x, y

    def on_epoch_end(self):
        self.order = self.rng.permutation(len(self.pictures))


def painted(n, seed):
    """Waves of two frequencies and a rotation belong to a pattern; glaze and cracks do not."""
    rng = np.random.default_rng(seed)
    wave = np.random.default_rng(0).uniform(1, 6, (PATTERNS, 3))
    ys, xs = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    pattern = rng.integers(0, PATTERNS, n)
    a, b, c = wave[pattern].T[..., None, None]
    lines = np.sin(a * xs * 3 + c * ys) * np.cos(b * ys * 3 - c * xs)
    pictures = lines[..., None] * rng.uniform(0.5, 1, (n, 1, 1, 3)) + rng.normal(0, 0.4, (n, SIDE, SIDE, 3))
    return pictures.astype(np.float32), keras.utils.to_categorical(pattern, PATTERNS)


class Mixer(layers.Layer):
    """Depthwise, then pointwise, both with a norm."""

    def __init__(self, width, kernel, **kwargs):
        super().__init__(**kwargs)
        self.depthwise = layers.DepthwiseConv2D(kernel, padding="same", activation="gelu")
        self.pointwise = layers.Conv2D(width, 1, activation="gelu")
        self.norms = [layers.BatchNormalization(), layers.BatchNormalization()]

    def call(self, x, training=False):
        x = x + self.norms[0](self.depthwise(x), training=training)
        return self.norms[1](self.pointwise(x), training=training)


def build(width=96, depth=4, patch=2):
    inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.Conv2D(width, patch, strides=patch, activation="gelu")(inputs)
    x = layers.BatchNormalization()(x)
    for _ in range(depth):
        x = Mixer(width, 5)(x)
    x = ops.mean(x, axis=(1, 2))
    return keras.Model(inputs, layers.Dense(PATTERNS, activation="softmax")(x))


def main(epochs=2, batch=32):
    keras.utils.set_random_seed(14)
    train = Tiles(*painted(1536, 1), batch, mix=True)
    test = Tiles(*painted(128, 2), 64, mix=False)
    model = build()
    decay = keras.optimizers.schedules.CosineDecay(2e-3, epochs * len(train))
    model.compile(keras.optimizers.AdamW(decay, weight_decay=1e-3), "categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        keras.callbacks.ModelCheckpoint("tiles.weights.h5", save_weights_only=True, save_best_only=True),
        keras.callbacks.CSVLogger("tiles.csv"),
    ]
    start = time.perf_counter()
    model.fit(train, validation_data=test, epochs=epochs, callbacks=callbacks, verbose=2)
    print(f"training took {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
