"""How is the mirror of the telescope bent? Zernike terms from two defocused pictures of a star; Keras 3 on PyTorch."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import time

import keras
import numpy as np
from keras import layers, ops

SIDE, TERMS = 40, 8


def zernike():
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    r, a = np.hypot(x, y), np.arctan2(y, x)
    terms = [r**2 * np.cos(2 * a), r**2 * np.sin(2 * a), (3 * r**3 - 2 * r) * np.cos(a), (3 * r**3 - 2 * r) * np.sin(a),
             6 * r**4 - 6 * r**2 + 1, r**3 * np.cos(3 * a), r**3 * np.sin(3 * a), r**4 * np.cos(4 * a)]  # fmt: skip
    return np.stack(terms), (r < 1).astype(float), 2 * r**2 - 1


def stars(count, seed):
    rng = np.random.default_rng(seed)
    terms, pupil, focus = zernike()
    bent = 0.6 * rng.normal(size=(count, TERMS)) / np.sqrt(np.arange(1, TERMS + 1))
    phase = np.einsum("nk,khw->nhw", bent, terms)
    pictures = []
    for side in (-1.5, 1.5):
        wave = np.fft.fftshift(np.fft.fft2(pupil * np.exp(1j * (phase + side * focus))), (1, 2))
        light = np.abs(wave) ** 2
        pictures.append(np.log1p(light / light.mean((1, 2), keepdims=True) + 0.02 * rng.random(light.shape)))
    return np.stack(pictures, 3).astype("float32"), bent.astype("float32")


@keras.saving.register_keras_serializable()
class Residual(layers.Layer):
    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.one = layers.Conv2D(width, 3, padding="same")
        self.two = layers.Conv2D(width, 3, padding="same")
        self.norm = layers.GroupNormalization(8)

    def call(self, x):
        return x + self.two(ops.silu(self.one(self.norm(x))))

    def get_config(self):
        return super().get_config() | {"width": self.width}


def build(width=32):
    star = keras.Input((SIDE, SIDE, 2))
    x = layers.Conv2D(width, 5, strides=2, padding="same")(star)
    x = Residual(width)(Residual(width)(x))
    x = layers.Conv2D(2 * width, 3, strides=2, padding="same")(x)
    x = Residual(2 * width)(Residual(2 * width)(x))
    x = layers.Flatten()(layers.Conv2D(16, 1, activation="silu")(x))
    x = layers.Dense(128, activation="silu")(x)
    return keras.Model(star, layers.Dense(TERMS)(x))


keras.utils.set_random_seed(4)
x, bent = stars(1600, 1)
held_out = stars(200, 2)
model = build()
schedule = keras.optimizers.schedules.CosineDecay(2e-3, decay_steps=150)
model.compile(optimizer=keras.optimizers.AdamW(schedule, clipnorm=1.0), loss="huber", metrics=["mae"])
begin = time.perf_counter()
history = model.fit(
    x,
    bent,
    batch_size=32,
    epochs=3,
    validation_data=held_out,
    validation_batch_size=100,
    callbacks=[keras.callbacks.ModelCheckpoint("mirror.keras", save_best_only=True), keras.callbacks.TerminateOnNaN()],
    verbose=2,
)
print(f"training took {time.perf_counter() - begin:.2f} s")
