"""Old thimbles by maker: photos of their rim and knurling, a small separable network, Keras on JAX."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import argparse
import time

import keras
import numpy as np

MAKERS, SIDE = 12, 40


def thimbles(count, rng):
    maker = rng.integers(0, MAKERS, count)
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j].astype("float32")
    tilt = rng.uniform(-0.4, 0.4, (count, 1, 1))
    u, v = x * np.cos(tilt) - y * np.sin(tilt), x * np.sin(tilt) + y * np.cos(tilt)
    knurls = np.sin((10 + maker % 4 * 3)[:, None, None] * u) * np.sin((9 + maker // 4 * 4)[:, None, None] * v)
    shape = (np.abs(u) < 0.5 + 0.15 * v) & (np.abs(v) < 0.8)
    metal = rng.uniform(0.4, 1.0, (count, 1, 1, 3))
    photo = metal * (shape * (0.7 + 0.3 * knurls))[..., None] + 0.1 * rng.normal(size=(count, SIDE, SIDE, 3))
    return photo.astype("float32"), maker.astype("int32")


class Stage(keras.layers.Layer):
    def __init__(self, width):
        super().__init__()
        self.down = keras.layers.Conv2D(width, 2, strides=2)
        self.one = keras.layers.Conv2D(width, 3, padding="same")
        self.two = keras.layers.Conv2D(width, 3, padding="same")
        self.norm = keras.layers.GroupNormalization(8)

    def call(self, x):
        x = self.down(x)
        return x + self.two(keras.ops.silu(self.one(self.norm(x))))


def network(widths):
    stages = [Stage(width) for width in widths]
    return keras.Sequential([
        keras.Input((SIDE, SIDE, 3)), *stages,
        keras.layers.GlobalAveragePooling2D(), keras.layers.Dropout(0.1), keras.layers.Dense(MAKERS),
    ])  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--photos", type=int, default=1920)
    args = parser.parse_args()
    keras.utils.set_random_seed(6)
    rng = np.random.default_rng(6)
    model = network((32, 64, 96))
    steps = args.epochs * args.photos // args.batch
    model.compile(
        optimizer=keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(2e-3, steps)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    photos, makers = thimbles(args.photos, rng)
    control = thimbles(128, rng)
    begin = time.perf_counter()
    model.fit(photos, makers, batch_size=args.batch, epochs=args.epochs, validation_data=control, verbose=2)
    print(f"training took {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
