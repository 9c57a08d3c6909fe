"""Is the bread done? Pictures from the oven's camera, a separable convolutional net in Keras 3 on PyTorch."""

import os
import time

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
from keras import layers

STAGES = ["dough", "rising", "pale", "golden", "burnt"]


def oven(n, seed, side=48):
    rng = np.random.default_rng(seed)
    stage = rng.integers(0, len(STAGES), n)
    y, x = np.mgrid[-1:1:48j, -1:1:48j]
    size = (0.4 + 0.08 * np.minimum(stage, 2) + rng.normal(0, 0.03, n))[:, None, None]
    loaf = 1 / (1 + np.exp(20 * (np.hypot(x, 1.4 * y) - size)))
    crust = np.array([[0.9, 0.85, 0.7], [0.9, 0.82, 0.65], [0.85, 0.7, 0.5], [0.75, 0.5, 0.2], [0.25, 0.15, 0.1]])
    colour = crust[stage][:, None, None] + rng.normal(0, 0.08, (n, 1, 1, 3))
    picture = 0.2 + loaf[..., None] * (colour - 0.2) + rng.normal(0, 0.1, (n, side, side, 3))
    return picture.astype("float32"), stage


def build():
    inputs = keras.Input((48, 48, 3))
    x = layers.RandomFlip("horizontal")(inputs)
    x = layers.Conv2D(32, 3, strides=2, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU()(x)
    for width, stride in ((64, 1), (96, 2), (96, 1)):
        y = layers.Conv2D(width, 3, strides=stride, padding="same", use_bias=False)(x)
        y = layers.BatchNormalization()(y)
        y = layers.ReLU()(y)
        y = layers.Conv2D(width, 3, padding="same", use_bias=False)(y)
        y = layers.BatchNormalization()(y)
        if stride > 1 or x.shape[-1] != width:
            x = layers.Conv2D(width, 1, strides=stride)(x)
        x = layers.ReLU()(layers.add([x, y]))
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(0.2)(x)
    return keras.Model(inputs, layers.Dense(len(STAGES), activation="softmax")(x))


keras.utils.set_random_seed(33)
x_train, y_train = oven(1280, 1)
x_val, y_val = oven(256, 2)
model = build()
model.compile(
    optimizer=keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.05, 100), momentum=0.9),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
clock = time.time()
model.fit(x_train, y_train, batch_size=64, epochs=2, validation_data=(x_val, y_val), verbose=2,
          callbacks=[keras.callbacks.EarlyStopping(patience=3)])
print(f"training took {time.time() - clock:.2f} s")
