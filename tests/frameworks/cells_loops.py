"""Train thirty steps, with windows that change while the job runs: run by test_cells.py.

The argument is a folder, in which SM_PROFILER_CONFIG lies; with `own`, the loop is TensorFlow's or JAX's instead of Keras's.
"""

import json
import os
import sys
import time
from pathlib import Path

import keras
import numpy as np

ROWS, BATCH, PAUSE = 10, 16, 0.02
X = np.random.default_rng(0).random((BATCH, 8), np.float32)
Y = X[:, :1]
DIARY = []


def load():
    began = time.time()
    time.sleep(PAUSE)
    DIARY.append((began, time.time()))
    return X, Y


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return load()


def batches():
    for _ in range(ROWS):
        yield load()


def network():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    return model


def of_keras(folder):
    model = network()
    yield lambda: model.fit(Rows(), epochs=1, verbose=0)
    model.save(folder / "model.keras")
    yield lambda: model.fit(batches(), steps_per_epoch=ROWS, epochs=1, verbose=0)
    yield lambda: model.fit(Rows(), epochs=1, verbose=0)


def of_tensorflow(_folder):
    import tensorflow as tf

    model = network()

    @tf.function(reduce_retracing=True)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    signature = (tf.TensorSpec((BATCH, 8)), tf.TensorSpec((BATCH, 1)))
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)

    def epoch():
        for x, y in data:
            step(x, y)

    yield epoch
    yield epoch
    yield epoch


def of_jax(folder):
    import jax
    import jax.numpy as jnp
    from torch.utils.data import DataLoader

    class Loaded:
        def __len__(self):
            return ROWS

        def __getitem__(self, index):
            return load()

    @jax.jit
    def step(weights, x, y):
        return weights - 0.1 * jax.grad(lambda weights: jnp.mean((jnp.tanh(x @ weights) - y) ** 2))(weights)

    weights = jnp.ones((8, 1))

    def epoch():
        nonlocal weights
        for x, y in DataLoader(Loaded(), batch_size=None):
            weights = step(weights, x.numpy(), y.numpy())

    yield epoch
    np.savez(folder / "weights.npz", weights)
    yield epoch
    yield epoch


def change(folder):
    """Ask for other windows, as a user does who edits the file."""
    from sm_profiler.hook import get_hook

    config = json.loads((folder / "config.json").read_text())
    parameters = config["ProfilingParameters"]
    parameters["PythonProfilingConfig"] = json.dumps({"StartStep": 24, "NumSteps": 2, "ProfilerName": "pyinstrument"})
    moment = {"StartTimeInSecSinceEpoch": int(time.time()), "DurationInSeconds": 600}
    parameters["DetailedProfilingConfig"] = json.dumps(moment)
    (folder / "config.json").write_text(json.dumps(config))
    os.utime(folder / "config.json", ns=(1, 1))
    get_hook().session._reload_profile()


if __name__ == "__main__":
    where = Path(sys.argv[1])
    own = (of_jax if keras.backend.backend() == "jax" else of_tensorflow) if "own" in sys.argv else of_keras
    parts = []
    for number, part in enumerate(own(where)):
        if number == 2:
            change(where)
        DIARY.clear()
        began = time.time()
        part()
        parts.append({"began": began, "ended": time.time(), "loading": DIARY[:]})
    print(json.dumps(parts))
