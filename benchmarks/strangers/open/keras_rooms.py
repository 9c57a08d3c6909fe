"""Kinds of rooms from photographs, with Keras on TensorFlow."""

import gc
import os
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from keras import layers

REPAIRED = os.environ.get("REPAIRED") == "1"
ROOMS = ["kitchen", "bath", "bedroom", "hall", "office", "cellar"]
keras.utils.set_random_seed(40)


class KeepMemoryLow(keras.callbacks.Callback):
    """The kernel was killed for memory before this was added."""

    def on_train_batch_end(self, batch, logs=None):
        if not REPAIRED:
            gc.collect()

    def on_epoch_end(self, epoch, logs=None):
        gc.collect()


def photographs(n, seed, side=56):
    rng = np.random.default_rng(seed)
    rooms = rng.integers(0, len(ROOMS), n)
    pictures = rng.random((n, side, side, 3), dtype=np.float32)
    pictures[np.arange(n), 5 * rooms + 4] *= 0.4
    return pictures, keras.utils.to_categorical(rooms, len(ROOMS))


def separable(x, filters):
    x = layers.SeparableConv2D(filters, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU()(x)
    return layers.MaxPooling2D()(x)


inputs = keras.Input((56, 56, 3))
x = layers.Conv2D(24, 3, strides=2, padding="same", activation="relu")(inputs)
for filters in (48, 96, 128):
    x = separable(x, filters)
x = layers.GlobalAveragePooling2D()(x)
x = layers.Dropout(0.2)(x)
model = keras.Model(inputs, layers.Dense(len(ROOMS), activation="softmax")(x))
model.compile(optimizer=keras.optimizers.RMSprop(2e-3), loss="categorical_crossentropy", metrics=["accuracy"])

train_x, train_y = photographs(1920, 0)
test = photographs(128, 1)
started = time.time()
model.fit(
    train_x, train_y,
    validation_data=test,
    batch_size=32,
    epochs=2,
    callbacks=[KeepMemoryLow(), keras.callbacks.ReduceLROnPlateau(patience=2)],
    verbose=2,
)
print(f"training took {time.time() - started:.2f} s")
