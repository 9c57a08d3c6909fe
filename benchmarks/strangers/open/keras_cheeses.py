"""Ripe or not? Infrared pictures of cheeses in the cellar, a small convolutional net in Keras on JAX."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import json
import time
from pathlib import Path

import keras
import numpy as np
from keras import layers

CAREFUL = os.environ.get("REPAIRED") != "1"


def cellar(count, seed):
    rng = np.random.default_rng(seed)
    ripe = rng.integers(0, 4, count)
    y, x = np.mgrid[-1:1:32j, -1:1:32j]
    warm = np.exp(-(x**2 + y**2) * (1 + ripe[:, None, None]))
    veins = np.sin(9 * x * rng.normal(1, 0.2, (count, 1, 1)) + 5 * y * ripe[:, None, None])
    pictures = warm + 0.3 * veins + rng.normal(0, 0.5, (count, 32, 32))
    return pictures[..., None].astype("float32"), ripe.astype("int32")


class Diary(keras.callbacks.Callback):
    """Weights of each layer, so that we see in the end what moved."""

    def __init__(self, path, every):
        super().__init__()
        self.path, self.every, self.pages = Path(path), every, []

    def on_train_batch_end(self, batch, logs=None):
        if batch % self.every:
            return
        page = {"batch": batch, "loss": float(logs["loss"])}
        for weight in self.model.trainable_weights:
            values = np.asarray(weight.value)
            counts, edges = np.histogram(values, bins=40)
            page[weight.path] = {"counts": counts.tolist(), "edges": edges.tolist(),
                                 "quantiles": np.quantile(values, np.linspace(0, 1, 21)).tolist()}  # fmt: skip
        self.pages.append(page)
        with self.path.open("a") as file:
            file.write(json.dumps(page) + "\n")


def network():
    net = keras.Sequential([keras.Input((32, 32, 1))])
    for width in (24, 48, 96):
        net.add(layers.Conv2D(width, 3, padding="same", use_bias=False))
        net.add(layers.GroupNormalization(8))
        net.add(layers.Activation("silu"))
        net.add(layers.MaxPooling2D())
    net.add(layers.Flatten())
    net.add(layers.Dense(256, activation="silu"))
    net.add(layers.Dense(4))
    return net


def main():
    keras.utils.set_random_seed(1815)
    net = network()
    net.compile(
        optimizer=keras.optimizers.AdamW(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    train_x, train_y = cellar(640, 1)
    test_x, test_y = cellar(480, 2)
    diary = Diary("diary.jsonl", every=1 if CAREFUL else 20)
    start = time.time()
    history = net.fit(
        train_x,
        train_y,
        batch_size=32,
        epochs=9,
        verbose=0,
        validation_data=(test_x, test_y),
        validation_batch_size=64,
        validation_freq=1 if CAREFUL else 4,
        callbacks=[diary],
    )
    print("val_accuracy", [round(value, 3) for value in history.history["val_accuracy"]])
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
