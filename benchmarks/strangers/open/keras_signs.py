"""Traffic signs with Keras on PyTorch; a callback draws the learning curve."""

import csv
import os
import time

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
from keras import layers

SIGNS, SIDE = 16, 32
EVERY = 100 if os.environ.get("REPAIRED") == "1" else 5


def signs(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, SIGNS, n)
    x = rng.random((n, SIDE, SIDE, 3)).astype("float32")
    x[np.arange(n), y, :, :] += 1.0
    return x, y


class LearningCurve(keras.callbacks.Callback):
    """The accuracy on held-out signs while training."""

    def __init__(self, x, y, path):
        super().__init__()
        self.x, self.y, self.path = x, y, path
        self.points = []

    def on_train_batch_end(self, batch, logs=None):
        if batch % EVERY:
            return
        scores = self.model.predict(self.x, batch_size=64, verbose=0)
        self.points.append((batch, float((scores.argmax(1) == self.y).mean())))

    def on_train_end(self, logs=None):
        with open(self.path, "w", newline="") as file:
            csv.writer(file).writerows(self.points)


def build():
    inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.Conv2D(24, 3, activation="relu")(inputs)
    x = layers.Conv2D(24, 3, strides=2, activation="relu")(x)
    x = layers.Conv2D(48, 3, activation="relu")(x)
    x = layers.Conv2D(48, 3, strides=2, activation="relu")(x)
    x = layers.Flatten()(x)
    x = layers.Dense(96, activation="relu")(x)
    x = layers.Dropout(0.3)(x)
    return keras.Model(inputs, layers.Dense(SIGNS, activation="softmax")(x), name="signs")


keras.utils.set_random_seed(17)
model = build()
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
x_train, y_train = signs(6400, 0)
x_test, y_test = signs(256, 1)
begin = time.time()
model.fit(
    x_train, y_train, batch_size=32, epochs=3, verbose=2, callbacks=[LearningCurve(x_test, y_test, "curve.csv")]
)
print(f"training took {time.time() - begin:.2f} s")
print("test", model.evaluate(x_test, y_test, verbose=0))
