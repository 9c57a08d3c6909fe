"""Canaries in a mine: will the air be bad in ten minutes? Readings of gas sensors in windows, TensorFlow, own loop."""

import os
import time
from argparse import ArgumentParser

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

WINDOW, AHEAD, GASES = 60, 10, 6
REPAIRED = os.environ.get("REPAIRED") == "1"


def mine(shafts, minutes, seed):
    """Readings of every shaft, and whether the air of it is bad."""
    rng = np.random.default_rng(seed)
    leaks = rng.random((shafts, minutes, GASES)) ** 40
    gas = np.zeros((shafts, minutes, GASES), np.float32)
    for t in range(1, minutes):
        gas[:, t] = 0.97 * gas[:, t - 1] + leaks[:, t] + 0.02 * rng.normal(size=(shafts, GASES))
    gas += 0.05 * rng.normal(size=gas.shape).astype(np.float32)
    return gas, (gas[..., :3].sum(2) > np.quantile(gas[..., :3].sum(2), 0.8)).astype(np.float32)


def windows(gas, bad, seed):
    rng = np.random.default_rng(seed)
    while True:
        shaft, end = rng.integers(len(gas)), rng.integers(WINDOW, gas.shape[1] - AHEAD)
        part = gas[shaft, end - WINDOW : end]
        yield (part - part.mean(0)) / (part.std(0) + 1e-3), bad[shaft, end + AHEAD]


def from_windows(gas, bad, batch, seed):
    shapes = (tf.TensorSpec((WINDOW, GASES), tf.float32), tf.TensorSpec((), tf.float32))
    data = tf.data.Dataset.from_generator(lambda: windows(gas, bad, seed), output_signature=shapes)
    return data.batch(batch)


def from_memory(gas, bad, batch, seed):
    gas, bad = tf.constant(gas), tf.constant(bad)

    def draw(step):
        key = tf.stack([seed, step])
        shaft = tf.random.stateless_uniform((batch,), key, 0, len(gas), tf.int64)
        end = tf.random.stateless_uniform((batch,), key + 1, WINDOW, gas.shape[1] - AHEAD, tf.int64)
        rows = end[:, None] + tf.range(-WINDOW, 0, dtype=tf.int64)
        part = tf.gather_nd(gas, tf.stack([tf.broadcast_to(shaft[:, None], rows.shape), rows], -1))
        mean, variance = tf.nn.moments(part, 1, keepdims=True)
        return (part - mean) / (tf.sqrt(variance) + 1e-3), tf.gather_nd(bad, tf.stack([shaft, end + AHEAD], 1))

    return tf.data.Dataset.counter(dtype=tf.int64).map(draw).prefetch(2)


def network(width):
    inputs = tf.keras.Input((WINDOW, GASES))
    h = tf.keras.layers.Conv1D(width, 5, padding="same", activation="gelu")(inputs)
    for dilation in (2, 4, 8):
        g = tf.keras.layers.Conv1D(width, 3, padding="same", dilation_rate=dilation, activation="gelu")(h)
        h = tf.keras.layers.LayerNormalization()(h + g)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(tf.keras.layers.GlobalAveragePooling1D()(h)))


def main():
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--check-every", type=int, default=80 if REPAIRED else 10)
    args = parser.parse_args()
    tf.keras.utils.set_random_seed(1)
    source = from_memory if REPAIRED else from_windows
    data = source(*mine(40, 1500, 5), args.batch, 3)
    control = list(from_memory(*mine(10, 1500, 6), 256, 4).take(4))
    model, optimizer = network(args.width), tf.keras.optimizers.Adam(1e-3)
    cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def train_step(gas, bad):
        with tf.GradientTape() as tape:
            loss = cross_entropy(bad[:, None], model(gas, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    @tf.function
    def warned(gas):
        return model(gas, training=False)[:, 0] > 0

    begin = time.time()
    for step, (gas, bad) in enumerate(data.take(args.steps), 1):
        loss = train_step(gas, bad)
        if step % args.check_every == 0:
            right = [np.mean(warned(x).numpy() == (y.numpy() > 0)) for x, y in control]
            print(f"step {step}: loss {loss.numpy():.3f}, {np.mean(right):.3f} right", flush=True)
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
