"""Water level in wells for the next month from rain, river and pumps: TensorFlow, a network with gates, own loop."""

import os
import time
from argparse import ArgumentParser

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

DAYS, AHEAD, FEATURES = 120, 30, 4


def wells(count, seed=2):
    rng = np.random.default_rng(seed)
    days = DAYS + AHEAD + 400
    rain = rng.gamma(0.3, 8, (count, days)) * (1 + 0.6 * np.sin(np.arange(days) / 58))
    river = np.stack([np.convolve(row, np.exp(-np.arange(30) / 9))[:days] for row in rain])
    pump = (rng.random((count, days)) < 0.4) * rng.uniform(0, 5, (count, 1))
    level = np.zeros((count, days))
    for day in range(1, days):
        level[:, day] = (
            0.985 * level[:, day - 1] + 0.02 * rain[:, day] + 0.004 * river[:, day - 1] - 0.05 * pump[:, day]
        )
    return np.stack([level, rain, river, pump], 2).astype(np.float32)


def window(series, begin):
    """One example: the past is scaled with what is known on its last day, the rain is smoothed a little."""
    past = series[begin : begin + DAYS]
    past.set_shape((DAYS, FEATURES))
    mean, variance = tf.nn.moments(past, 0)
    past = (past - mean) / tf.sqrt(variance + 1e-3)
    rain = tf.nn.avg_pool1d(past[None, :, 1:2], 7, 1, "SAME")[0]
    future = series[begin + DAYS : begin + DAYS + AHEAD, 0]
    future.set_shape((AHEAD,))
    return tf.concat([past, rain], 1), (future - mean[0]) / tf.sqrt(variance[0] + 1e-3)


def examples(series, batch, seed):
    rng = np.random.default_rng(seed)
    which = rng.integers(0, len(series), 40_000)
    begin = rng.integers(0, series.shape[1] - DAYS - AHEAD, 40_000)
    table = tf.constant(series)
    data = tf.data.Dataset.from_tensor_slices((which, begin))
    return data.map(lambda w, b: window(table[w], b)).batch(batch, drop_remainder=True)


class Gated(tf.keras.layers.Layer):
    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.norm = tf.keras.layers.LayerNormalization()
        self.both, self.out = tf.keras.layers.Dense(2 * width), tf.keras.layers.Dense(width)

    def call(self, x):
        value, gate = tf.split(self.both(self.norm(x)), 2, axis=-1)
        return x + self.out(value * tf.nn.silu(gate))


def network(width):
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((DAYS, FEATURES + 1)),
            tf.keras.layers.Conv1D(64, 8, strides=4, activation="silu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(width),
            *[Gated(width) for _ in range(4)],
            tf.keras.layers.Dense(AHEAD),
        ]
    )


def main():
    parser = ArgumentParser()
    parser.add_argument("--steps", type=int, default=110)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=640)
    args = parser.parse_args()
    tf.keras.utils.set_random_seed(3)
    model, optimizer = network(args.width), tf.keras.optimizers.AdamW(5e-4)
    data = examples(wells(60), args.batch, 5)
    one_after_the_other = iter(data) if os.environ.get("REPAIRED") == "1" else None

    @tf.function
    def train_step(past, future):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(model(past, training=True) - future))
        grads, _ = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 1.0)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    begin, average = time.time(), 0.0
    for step in range(args.steps):
        if one_after_the_other:
            past, future = next(one_after_the_other)
        else:
            past, future = next(iter(data.skip(step).take(1)))
        average += train_step(past, future)
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}: error {average.numpy() / 50:.4f}", flush=True)
            average = 0.0
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
