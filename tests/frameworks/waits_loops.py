"""Train on batches that take long to load, and print how long they took: run by test_keras_waits.py."""

import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

BACKEND = keras.backend.backend()
BATCHES, LOADING, COMPUTING = 16, 0.2, 0.08
X = np.random.default_rng(0).random((16, 8), np.float32)
DIARY = {"loading": [], "computing": []}


def spend(what, seconds):
    began = time.perf_counter()
    time.sleep(seconds)
    ended = time.perf_counter()
    DIARY[what].append((began, ended))


def load(_number):
    spend("loading", LOADING)
    return X


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        return load(index), X[:, :1]


def pipeline(count=BATCHES, function=load):
    import tensorflow as tf

    def decode(number):
        x = tf.ensure_shape(tf.numpy_function(function, [number], tf.float32), X.shape)
        return x, x[:, :1]

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.range(count).map(decode).with_options(options)


def loss_that_takes_time(targets, outputs):
    import tensorflow as tf

    def wait(value):
        spend("computing", COMPUTING)
        return value

    held = tf.ensure_shape(tf.numpy_function(wait, [outputs], tf.float32), outputs.shape)
    return tf.reduce_mean((outputs - targets) ** 2) + 0.0 * tf.reduce_mean(held)


def fit(data, runs, *, jit=False, loss="mse"):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", loss, jit_compile=jit, steps_per_execution=runs)
    warm = pipeline(runs, lambda _number: X) if BACKEND != "torch" else X
    model.fit(warm, None if BACKEND != "torch" else X[:, :1], verbose=0)  # traces and compiles
    for times in DIARY.values():
        times.clear()
    began = time.time()
    model.fit(data, verbose=0)
    about = {name: sum(ended - start for start, ended in times) for name, times in DIARY.items()}
    edges = [edge for times in DIARY.values() for pair in times for edge in pair]
    return about | {"loop": max(edges) - min(edges), "began": began, "ended": time.time()}


LOOPS = {
    "tensorflow": {
        "1-computing": lambda: fit(pipeline(), 1, loss=loss_that_takes_time),
        "8-computing": lambda: fit(pipeline(), 8, loss=loss_that_takes_time),
        **{f"{runs}-{jit}": (lambda runs=runs, jit=jit: fit(pipeline(), runs, jit=jit)) for runs in (1, 8) for jit in (False, True)},
    },
    "jax": {
        **{f"{runs}-True": (lambda runs=runs: fit(pipeline(), runs, jit=True)) for runs in (1, 8)},
        "1-False": lambda: fit(Rows(), 1, jit=True),
    },
    "torch": {"1-False": lambda: fit(Rows(), 1)},
}  # fmt: skip

if __name__ == "__main__":
    for name, loop in LOOPS[BACKEND].items():
        print(json.dumps({"name": name, **loop()}), flush=True)
