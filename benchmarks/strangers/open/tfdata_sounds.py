"""Recognize sounds of birds: spectrograms with numpy, tf.data, a Keras model on TensorFlow."""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)
RATE, SECONDS, BIRDS = 16000, 3, 8
rng = np.random.default_rng(2)
waves = rng.normal(0, 0.1, (96, RATE * SECONDS)).astype(np.float32)
window = np.hanning(512).astype(np.float32)


def spectrogram(wave):
    frames = np.lib.stride_tricks.sliding_window_view(wave, 512)[::160]
    power = np.abs(np.fft.rfft(frames * window, axis=1)) ** 2
    bands = power[:, :256].reshape(len(power), 64, 4).mean(2)
    return np.log1p(bands).astype(np.float32)


def load(index):
    return spectrogram(waves[index % len(waves)])


def to_features(index):
    features = tf.numpy_function(load, [index], tf.float32)
    features.set_shape((297, 64))
    return features, index % BIRDS


def pipeline(examples, batch):
    ds = tf.data.Dataset.range(len(waves)).map(to_features)
    if os.environ.get("REPAIRED") == "1":
        ds = ds.cache()
    return ds.repeat().shuffle(64).take(examples).batch(batch).prefetch(1)


model = keras.Sequential([
    keras.Input((297, 64)),
    keras.layers.Conv1D(48, 5, strides=3, activation="relu"),
    keras.layers.Conv1D(64, 5, strides=3, activation="relu"),
    keras.layers.GlobalMaxPooling1D(),
    keras.layers.Dense(64, activation="relu"),
    keras.layers.Dense(BIRDS),
])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
begin = time.time()
model.fit(pipeline(4800, 12), epochs=1, verbose=2)
print(f"training took {time.time() - begin:.2f} s")
