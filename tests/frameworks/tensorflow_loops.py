"""Train with TensorFlow in loops of all kinds, and print what each counted: run by test_tensorflow.py.

The names of loops are arguments; each prints one line of JSON.
"""

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from sm_profiler.hook import overhead

BATCHES, EVALUATED, PLANTED = 20, 4, 0.01
DIARY = []  # seconds that each batch was held up


def held_up(values):
    began = time.perf_counter()
    time.sleep(PLANTED)
    DIARY.append(time.perf_counter() - began)
    return values


def slow_decode(x, y):
    shape = x.shape
    x = tf.numpy_function(held_up, [x], tf.float32)
    x.set_shape(shape)
    return x, y


def batches(count=BATCHES):
    rng = np.random.default_rng(0)
    x = rng.random((count * 8, 20), np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(8, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # every batch is loaded while the loop waits for it
    return data.map(slow_decode).with_options(options)


def model():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((20,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.3)]
    network = keras.Sequential([*layers, keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(network.trainable_variables)
    return network, optimizer


def step(network, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((network(x, training=True) - y) ** 2)
    gradients = tape.gradient(loss, network.trainable_variables)
    optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
    return loss


def eager():
    network, optimizer = model()
    losses = [float(step(network, optimizer, x, y)) for _ in range(2) for x, y in batches()]
    losses += [float(tf.reduce_mean(network(x) - y)) for x, y in batches(EVALUATED)]
    return losses, {"TRAIN": 2 * BATCHES, "EVAL": EVALUATED}


def function():
    network, optimizer = model()

    @tf.function
    def train(x, y):
        return step(network, optimizer, x, y)

    @tf.function
    def evaluate(x, y):
        return tf.reduce_mean((network(x) - y) ** 2)

    losses = []
    for _ in range(2):
        losses += [float(train(x, y)) for x, y in batches()]
        losses += [float(evaluate(x, y)) for x, y in batches(EVALUATED)]
    return losses, {"TRAIN": 2 * BATCHES, "EVAL": 2 * EVALUATED}


def without_loader():
    network, optimizer = model()
    train = tf.function(step)
    x = tf.random.stateless_uniform((8, 20), (1, 2))
    losses = [float(train(network, optimizer, x, x[:, :1])) for _ in range(BATCHES)]
    return losses, {"TRAIN": BATCHES}


def epochs(over):
    network, optimizer = model()
    total = tf.Variable(0.0)

    @tf.function
    def epoch(data):
        for x, y in data:
            total.assign_add(step(network, optimizer, x, y))

    losses = []
    for _ in range(2):
        epoch(over(batches()))
        losses.append(float(total))
    return losses, {"TRAIN": 2 * BATCHES}


def epoch_of_dataset():
    return epochs(lambda data: data)


def epoch_of_iterator():
    return epochs(iter)


def mirrored():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        network, optimizer = model()

    @tf.function
    def train(batch):
        each = strategy.run(lambda pair: step(network, optimizer, *pair), args=(batch,))
        return strategy.reduce("MEAN", each, axis=None)

    losses = [float(train(batch)) for batch in strategy.experimental_distribute_dataset(batches())]
    return losses, {"TRAIN": BATCHES}


def retraced():
    network, optimizer = model()

    @tf.function
    def scaled(x, y, factor):
        return step(network, optimizer, x, y) * factor

    losses = [float(scaled(x, y, number)) for number, (x, y) in enumerate(batches(6))]
    losses += [float(scaled(x[: number + 1], y[: number + 1], 1)) for number, (x, y) in enumerate(batches(4))]
    return losses, {"TRAIN": 10}


def compiled_by_xla():
    network, optimizer = model()

    @tf.function(jit_compile=True, reduce_retracing=True)
    def compiled(x, y):
        return step(network, optimizer, x, y)

    losses = [float(compiled(x[: 1 + number // 2], y[: 1 + number // 2])) for number, (x, y) in enumerate(batches(10))]
    return losses, {"TRAIN": 10}


def compiled_in_graphs():
    """Keras's fit, two batches a run: each run of the first epoch has batches of another length, the second none."""
    network, _ = model()
    network.compile("sgd", "mse", jit_compile=True, steps_per_execution=2)
    x = tf.constant(np.random.default_rng(0).random((5, 20), np.float32))
    data = tf.data.Dataset.range(10).map(lambda number: (x[: 1 + number // 2], x[: 1 + number // 2, :1]))
    return network.fit(data, epochs=2, verbose=0).history["loss"], {"TRAIN": 10}


def break_everything():
    """Let every call of the hook raise."""
    from sm_profiler.hook.entry import get_hook
    from sm_profiler.hook.tensorflow import adapter, compilations, pipelines, stopwatch

    def broken(*_args, **_kwargs):
        raise ZeroDivisionError("broken on purpose")

    tracker = type(get_hook().session.tracker)
    calls = {
        tracker: [name for name, member in vars(tracker).items() if callable(member) and not name.startswith("_")],
        stopwatch.Stopwatch: ["rows", "batches", "_find_graph", "_record"],
        stopwatch.Table: ["create", "add"],
        compilations.Retracing: ["_describe", "start"],
        pipelines.Stages: ["beat", "iterator_ended", "batch", "close", "_look"],
        compilations.InGraphs: ["traced", "another"],
        adapter.Loops: ["_find_compilation", "_fetched", "_called", "_ran_batches"],
    }
    for owner, names in calls.items():
        for name in names:
            setattr(owner, name, broken)


def main(names):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    if "broken" in names:
        names.remove("broken")
        break_everything()
    for name in names:
        DIARY.clear()
        began = time.time()
        losses, steps = globals()[name]()
        sys.stdout.write(
            json.dumps({
                "loop": name, "began": began, "ended": time.time(), "steps": steps, "held_up": sum(DIARY),
                "losses": [one.hex() for one in losses],
            }) + "\n"
        )  # fmt: skip


if __name__ == "__main__":
    overhead.OVER = sys.maxsize  # on a busy machine, phases would become sparse, and could not be counted
    main(sys.argv[1:])
