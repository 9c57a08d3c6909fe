"""Glyphs of old books: a residual network in Keras on PyTorch, trained with warm-up and label smoothing."""

import os
import time

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
from keras import layers

GLYPHS = 40
EPOCHS, BATCH = 2, 64


def scans(n, seed):
    rng = np.random.default_rng(seed)
    shapes = np.random.default_rng(0).random((GLYPHS, 32, 32, 1), dtype=np.float32) > 0.7
    which = rng.integers(0, GLYPHS, n)
    ink = shapes[which] * rng.uniform(0.4, 1.0, (n, 1, 1, 1)).astype("float32")
    return ink + 0.3 * rng.standard_normal((n, 32, 32, 1)).astype("float32"), which


def residual(x, filters, strides=1):
    y = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
    y = layers.Activation("relu")(layers.BatchNormalization()(y))
    y = layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same", use_bias=False)(y))
    if strides > 1 or x.shape[-1] != filters:
        x = layers.Conv2D(filters, 1, strides)(x)
    return layers.Activation("relu")(layers.add([x, y]))


def network():
    x = inputs = keras.Input((32, 32, 1))
    x = layers.Conv2D(16, 3, padding="same")(x)
    for filters, strides in [(24, 1), (48, 2), (96, 2)]:
        x = residual(x, filters, strides)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(GLYPHS)(x), name="glyphs")


def warm_up(epoch, lr):
    return 5e-4 if epoch == 0 else 2e-3


keras.utils.set_random_seed(1)
model = network()
model.compile(
    optimizer=keras.optimizers.AdamW(2e-3, weight_decay=1e-4),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
x, y = scans(3328, 1)
callbacks = [
    keras.callbacks.LearningRateScheduler(warm_up),
    keras.callbacks.CSVLogger("glyphs.csv"),
    keras.callbacks.ModelCheckpoint("glyphs.weights.h5", save_weights_only=True, save_best_only=True, monitor="val_loss"),
]
start = time.time()
model.fit(x, y, validation_split=0.05, batch_size=BATCH, epochs=EPOCHS, callbacks=callbacks, verbose=2)
print(f"training took {time.time() - start:.2f} s")
