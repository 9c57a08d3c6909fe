"""Train with Keras in many ways, and print what Keras itself counted: run by test_keras.py.

The names of loops are arguments; each prints one line of JSON.
"""

import contextlib
import hashlib
import json
import sys
import time

import keras
import numpy as np

from sm_profiler.hook import overhead

BACKEND = keras.backend.backend()
rng = np.random.default_rng(0)
X, Y = rng.random((160, 8), np.float32), rng.random((160, 1), np.float32)


def make(**options):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse", **options)
    return model


class Rows(keras.utils.PyDataset):
    def __init__(self, **options):
        super().__init__(**options)

    def __len__(self):
        return 10

    def __getitem__(self, index):
        time.sleep(0.002)
        return X[index * 16 : index * 16 + 16], Y[index * 16 : index * 16 + 16]


class Slow(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.05)

    def on_train_batch_end(self, batch, logs=None):
        pass


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, *args):
        return super().train_step(*args)


class Block(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(8)])
        self.norm = keras.layers.LayerNormalization()

    def call(self, inputs):
        return self.norm(inputs + self.inner(inputs))


def layers():
    keras.utils.set_random_seed(1)
    inputs = keras.layers.Input((8,))
    model = keras.Model(inputs, keras.layers.Dense(1)(Block()(inputs)))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    history = model.fit(X, Y, epochs=1, batch_size=16, verbose=0)
    return model, history.history["loss"], {"TRAIN": 10}


def fit(**options):
    model = make(**options)
    history = model.fit(X, Y, epochs=2, batch_size=16, verbose=0, validation_data=(X[:64], Y[:64]))
    model.evaluate(X, Y, batch_size=32, verbose=0)
    model.predict(X, batch_size=32, verbose=0)
    return model, history.history["loss"], {"TRAIN": 20, "EVAL": 2 * 4 + 5, "PREDICT": 5}


def several():
    model = make(steps_per_execution=8)

    def rows():
        for start in range(0, 160, 16):
            yield X[start : start + 16], Y[start : start + 16]

    if BACKEND == "tensorflow":  # a dataset of unknown length, whose last run is shorter
        import tensorflow as tf

        signature = (tf.TensorSpec((None, 8)), tf.TensorSpec((None, 1)))
        data = tf.data.Dataset.from_generator(rows, output_signature=signature)
        history = model.fit(data, epochs=2, verbose=0)
    else:
        history = model.fit(X, Y, epochs=2, batch_size=16, verbose=0)
    return model, history.history["loss"], {"TRAIN": 20}


def unknown():
    import tensorflow as tf

    def rows():
        for start in range(0, 160, 16):
            yield X[start : start + 16], Y[start : start + 16]

    model = make()
    signature = (tf.TensorSpec((None, 8)), tf.TensorSpec((None, 1)))
    data = tf.data.Dataset.from_generator(rows, output_signature=signature)
    history = model.fit(data, epochs=3, verbose=0, validation_data=data)
    return model, history.history["loss"], {"TRAIN": 30, "EVAL": 30}


def on_batch():
    model = make()
    losses = [float(model.train_on_batch(X[at : at + 16], Y[at : at + 16])) for at in range(0, 160, 16)]
    model.test_on_batch(X[:16], Y[:16])
    model.predict_on_batch(X[:16])
    return model, losses, {"TRAIN": 10, "EVAL": 1, "PREDICT": 1}


def wide():
    keras.utils.set_random_seed(1)
    x = rng.random((640, 1024), np.float32)
    model = keras.Sequential([keras.layers.Input((1024,)), *[keras.layers.Dense(1024) for _ in range(3)]])
    model.compile("sgd", "mse")
    history = model.fit(x, x, epochs=2, batch_size=64, verbose=0)
    return model, history.history["loss"], {"TRAIN": 20}


def own():
    keras.utils.set_random_seed(1)
    model = Own()
    model.compile("sgd", "mse", run_eagerly=True)
    history = model.fit(X, Y, epochs=1, batch_size=16, verbose=0)
    return model, history.history["loss"], {"TRAIN": 10}


def dataset(**options):
    model = make()
    history = model.fit(Rows(**options), epochs=2, verbose=0, callbacks=[Slow()], shuffle=False)
    return model, history.history["loss"], {"TRAIN": 20}


def torch_loader():
    import torch

    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    model = make()
    history = model.fit(torch.utils.data.DataLoader(data, batch_size=16), epochs=2, verbose=0)
    return model, history.history["loss"], {"TRAIN": 20}


def tf_data():
    import tensorflow as tf

    model = make()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16).prefetch(2)
    history = model.fit(data, epochs=2, verbose=0)
    return model, history.history["loss"], {"TRAIN": 20}


def raises():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 4:
                raise RuntimeError("stop")

    model = make()
    with contextlib.suppress(RuntimeError):
        model.fit(X, Y, epochs=1, batch_size=16, verbose=0, callbacks=[Stop()])
    history = model.fit(X, Y, epochs=1, batch_size=16, verbose=0)
    return model, history.history["loss"], {"TRAIN": 15}


def mirrored():
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = make()
    history = model.fit(X, Y, epochs=2, batch_size=32, verbose=0)
    return model, history.history["loss"], {"TRAIN": 10}


def distributed(*, split_model):
    devices = keras.distribution.list_devices("cpu")
    assert len(devices) == 2
    if split_model:
        layout = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((1, 2), ["batch", "model"], devices))
        layout["dense/kernel"], layout["dense/bias"] = (None, "model"), ("model",)
        distribution = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    else:
        distribution = keras.distribution.DataParallel(devices=devices)
    keras.distribution.set_distribution(distribution)
    try:
        return fit()
    finally:
        keras.distribution.set_distribution(None)


LOOPS = {
    "fit": fit,
    "fit-jit": lambda: fit(jit_compile=True),
    "fit-plain": lambda: fit(jit_compile=False),
    "eager": lambda: fit(run_eagerly=True),
    "several": several,
    "unknown": unknown,
    "on_batch": on_batch,
    "layers": layers,
    "wide": wide,
    "own": own,
    "dataset": dataset,
    "dataset-threads": lambda: dataset(workers=2),
    "dataset-processes": lambda: dataset(workers=2, use_multiprocessing=True),
    "torch-loader": torch_loader,
    "tf-data": tf_data,
    "raises": raises,
    "mirrored": mirrored,
    "data-parallel": lambda: distributed(split_model=False),
    "model-parallel": lambda: distributed(split_model=True),
}


def iterations(model) -> int:
    value = model.optimizer.iterations.value
    return int(value.numpy() if BACKEND == "tensorflow" else value)


def digest(model) -> str:
    weights = b"".join(np.ascontiguousarray(weight).tobytes() for weight in model.get_weights())
    return hashlib.sha256(weights).hexdigest()


if __name__ == "__main__":
    overhead.OVER = sys.maxsize  # on a busy machine, phases would become sparse, and could not be counted
    for name in sys.argv[1:]:
        began = time.time()
        trained, losses, expected = LOOPS[name]()
        about = {"loop": name, "losses": [float(loss) for loss in losses], "weights": digest(trained)}
        about |= {"iterations": iterations(trained), "expected": expected, "began": began}
        print(json.dumps({**about, "ended": time.time()}), flush=True)
