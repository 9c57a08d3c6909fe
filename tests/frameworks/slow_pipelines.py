"""Train with pipelines of tf.data that each have one slow stage: run by test_slow_pipelines.py.

Each prints one line of JSON with the stage that is slow, as the report should name it.
"""

import json
import os
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

BATCHES, BATCH, PAUSE = 60, 8, 0.005
SECONDS = 4.0  # that a pipeline without an end runs at least, on a fast machine too


def hold_up(x):
    time.sleep(PAUSE)
    return x


def decode(x):  # by numpy_function
    return tf.ensure_shape(tf.numpy_function(hold_up, [x], tf.int64), ())


def transform(x):  # by py_function
    return tf.ensure_shape(tf.py_function(hold_up, [x], tf.int64), ())


def keep(x):
    return tf.numpy_function(lambda value: hold_up(value) >= 0, [x], tf.bool)


def cheap(x):
    return tf.cast(x, tf.float32) * 2.0


def numbers():
    for number in range(BATCHES * BATCH):
        time.sleep(PAUSE)
        yield number


def parse(line):
    return tf.strings.to_number(tf.strings.split(line, ","))


def augment(x):
    for _ in range(60):
        x = tf.sort(tf.sin(x), axis=-1)
    return x


def read(path):
    return tf.data.TextLineDataset(path).map(decode_line)


def decode_line(line):
    return tf.ensure_shape(tf.numpy_function(lambda text: hold_up(np.float32(len(text))), [line], tf.float32), ())


def counted():
    return tf.data.Dataset.range(BATCHES * BATCH)


def slow_map():
    return counted().map(decode).map(cheap).batch(BATCH).prefetch(2), "map(decode)"


def slow_filter():
    return counted().filter(keep).map(cheap).batch(BATCH).prefetch(2), "filter(keep)"


def slow_generator():
    signature = tf.TensorSpec((), tf.int64)
    return tf.data.Dataset.from_generator(numbers, output_signature=signature).map(cheap).batch(
        BATCH
    ), "from_generator(numbers)"


def slow_batch():
    row = tf.data.Dataset.from_tensors(tf.zeros([1_000_000])).repeat(BATCHES * BATCH)
    return row.padded_batch(BATCH, padded_shapes=[1_000_100]), "batch"


def slow_readers():
    folder = tempfile.mkdtemp()
    paths = [os.path.join(folder, f"{number}.txt") for number in range(4)]
    for path in paths:
        with open(path, "w") as file:
            file.write("some text\n" * (BATCHES * BATCH // 4))
    return tf.data.Dataset.from_tensor_slices(paths).interleave(read, cycle_length=4).batch(
        BATCH
    ), "map inside interleave(read)"


def python_function():
    return counted().map(transform, num_parallel_calls=2).map(cheap).batch(BATCH).prefetch(2), "map(transform)"


def shuffled():
    return counted().map(decode).shuffle(BATCHES * BATCH // 2).map(cheap).batch(BATCH), "map(decode)"


def cached():
    return counted().map(decode).cache().map(cheap).batch(BATCH).prefetch(2), "map(decode)"


def parsed():
    line = ",".join(["1.5"] * 20_000)
    return tf.data.Dataset.from_tensors(line).repeat().map(parse).batch(BATCH).prefetch(2), "map(parse)"


def not_ahead():
    rows = tf.data.Dataset.from_tensors(tf.zeros([2_000])).repeat().batch(BATCH)
    return rows.map(augment), "map(augment)"


PIPELINES = {
    one.__name__: one
    for one in (
        slow_map, slow_filter, slow_generator, slow_batch, slow_readers, python_function, shuffled, cached, parsed, not_ahead,
    )
}  # fmt: skip


@tf.function(reduce_retracing=True)
def step(weight, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(weight * tf.cast(x, tf.float32))
    weight.assign_sub(0.01 * tape.gradient(loss, weight))
    return loss


if __name__ == "__main__":
    variable = tf.Variable(1.0)
    for name in sys.argv[1:] or PIPELINES:
        data, stage = PIPELINES[name]()
        began, count = time.time(), 0
        for batch in data:
            step(variable, batch)
            count += 1
            if count >= BATCHES and time.time() - began >= SECONDS:
                break
        print(
            json.dumps({"name": name, "stage": stage, "batches": count, "began": began, "ended": time.time()}),
            flush=True,
        )
