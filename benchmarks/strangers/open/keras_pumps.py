"""Find failing pumps: a convolutional autoencoder of vibration, Keras on TensorFlow."""

import os
import time

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from keras import layers

LENGTH, SENSORS = 256, 4


def vibration(n, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(LENGTH, dtype="float32") / 100
    hertz = rng.uniform(2, 9, (n, 1, SENSORS)).astype("float32")
    phase = rng.uniform(0, 6.28, (n, 1, SENSORS)).astype("float32")
    wave = np.sin(6.28 * hertz * t[None, :, None] + phase)
    return wave + 0.1 * rng.standard_normal(wave.shape).astype("float32")


def dataset(x, batch, training=False):
    data = tf.data.Dataset.from_tensor_slices(x)
    if training:
        data = data.shuffle(len(x), seed=5)
    data = data.batch(batch, drop_remainder=training)
    if training:
        data = data.map(lambda w: (w + tf.random.normal(tf.shape(w), stddev=0.05), w))
    else:
        data = data.map(lambda w: (w, w))
    return data.prefetch(tf.data.AUTOTUNE)


def autoencoder(width=48):
    inputs = keras.Input((LENGTH, SENSORS))
    x = inputs
    for i in range(3):
        x = layers.Conv1D(width * (i + 1), 7, strides=2, padding="same", activation="gelu")(x)
    x = layers.LayerNormalization()(x)
    for i in range(3):
        x = layers.Conv1DTranspose(width * (3 - i), 7, strides=2, padding="same", activation="gelu")(x)
    return keras.Model(inputs, layers.Conv1D(SENSORS, 7, padding="same")(x))


keras.utils.set_random_seed(9)
train, test = dataset(vibration(1536, 0), 32, training=True), dataset(vibration(256, 1), 128)
model = autoencoder()
model.compile(keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(2e-3, 144)), loss="mse")
begin = time.time()
model.fit(
    train, epochs=3, verbose=2, validation_data=test, callbacks=[keras.callbacks.TerminateOnNaN()]
)
print(f"training took {time.time() - begin:.2f} s")
error = np.square(model.predict(test, verbose=0) - vibration(256, 1)).mean((1, 2))
print("alarm above", np.quantile(error, 0.99))
