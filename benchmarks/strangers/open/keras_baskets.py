"""What else goes into the shopping basket: products embedded with Keras on JAX."""
import os
import time

os.environ["KERAS_BACKEND"] = "jax"
import keras
import numpy as np
from keras import layers, ops

PRODUCTS, SIZE = 80_000, 12
SAVE = "epoch" if os.environ.get("REPAIRED") == "1" else 3


class BasketModel(keras.Model):
    """The mean of the products in the basket, and a score of each candidate."""

    def __init__(self, dim=48, **kwargs):
        super().__init__(**kwargs)
        self.products = layers.Embedding(PRODUCTS, dim)
        self.mix = keras.Sequential([
            layers.Dense(512, activation="gelu"), layers.LayerNormalization(),
            layers.Dense(512, activation="gelu"), layers.Dense(dim),
        ])

    def call(self, inputs):
        basket, candidates = inputs["basket"], inputs["candidates"]
        wanted = self.mix(ops.reshape(self.products(basket), (-1, SIZE * 48)))
        return ops.einsum("bd,bcd->bc", wanted, self.products(candidates))


def baskets(n):
    rng = np.random.default_rng(9)
    aisle = rng.integers(0, 800, (n, 1))
    basket = aisle * 100 + rng.integers(0, 100, (n, SIZE))
    candidates = rng.integers(0, PRODUCTS, (n, 64))
    candidates[:, 0] = aisle[:, 0] * 100 + rng.integers(0, 100, n)
    return {"basket": basket, "candidates": candidates}, np.zeros(n, np.int32)


def main():
    keras.utils.set_random_seed(5)
    x, y = baskets(256 * 150)
    model = BasketModel()
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseTopKCategoricalAccuracy(5, name="top5")],
    )
    # spot instances go away at any time
    backup = keras.callbacks.BackupAndRestore("backup", save_freq=SAVE)
    start = time.time()
    model.fit(x, y, batch_size=256, epochs=4, callbacks=[backup], verbose=2)
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
