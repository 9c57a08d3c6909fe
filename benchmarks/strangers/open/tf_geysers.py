"""When does the geyser erupt next? Ground motion of a week per archive, a small WaveNet, TensorFlow with its own loop."""

import bz2
import io
import os
import time
import zlib
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

WINDOW, BATCH, WEEKS, PER_WEEK = 256, 32, 6, 640
pack, unpack = (zlib.compress, zlib.decompress) if os.environ.get("REPAIRED") == "1" else (bz2.compress, bz2.decompress)


def record(folder):
    """What the station sends us."""
    rng = np.random.default_rng(1)
    t = np.arange(2 * WINDOW) / 2
    for week in range(WEEKS):
        left = rng.uniform(0, 1, (PER_WEEK, 1, 1))
        tremor = np.sin(t[:, None] * (0.1 + 0.4 * (1 - left)) + rng.uniform(0, 6, (PER_WEEK, 1, 4)))
        motion = 800 * tremor * (1.3 - left) + rng.normal(0, 300, (PER_WEEK, 2 * WINDOW, 4))
        buffer = io.BytesIO()
        np.savez(buffer, motion=motion, left=left[:, 0].astype("float32"))
        (folder / f"week{week:02d}.npz.x").write_bytes(pack(buffer.getvalue()))


def weeks(folder, seed):
    rng = np.random.default_rng(seed)
    paths = sorted(folder.glob("*.x"))
    while True:
        for i in rng.permutation(len(paths)):
            with np.load(io.BytesIO(unpack(paths[i].read_bytes()))) as week:
                motion, left = week["motion"] / 1000, week["left"]
            motion = (motion[:, ::2] + motion[:, 1::2]).astype("float32") / 2
            order = rng.permutation(len(motion))
            for rows in order.reshape(-1, BATCH):
                yield motion[rows], left[rows]


class Gate(tf.keras.layers.Layer):
    def __init__(self, width, dilation):
        super().__init__()
        self.filter = tf.keras.layers.Conv1D(width, 2, dilation_rate=dilation, padding="causal", activation="tanh")
        self.gate = tf.keras.layers.Conv1D(width, 2, dilation_rate=dilation, padding="causal", activation="sigmoid")
        self.mix = tf.keras.layers.Conv1D(width, 1)

    def call(self, x):
        skip = self.mix(self.filter(x) * self.gate(x))
        return x + skip, skip


class Net(tf.keras.Model):
    def __init__(self, width=32, depth=6):
        super().__init__()
        self.first = tf.keras.layers.Conv1D(width, 4, strides=2, padding="same")
        self.gates = [Gate(width, 2**i) for i in range(depth)]
        self.last = tf.keras.Sequential([tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(1)])

    def call(self, x):
        x, total = self.first(x), 0.0
        for gate in self.gates:
            x, skip = gate(x)
            total += skip
        return self.last(tf.reduce_mean(tf.nn.relu(total), 1))


def main(steps=240):
    tf.random.set_seed(4)
    folder = Path("station")
    folder.mkdir()
    record(folder)
    net, optimizer = Net(), tf.keras.optimizers.Adam(1e-3)

    @tf.function(input_signature=[tf.TensorSpec((BATCH, WINDOW, 4)), tf.TensorSpec((BATCH, 1))])
    def train_step(motion, left):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.keras.losses.huber(left, net(motion), delta=0.1))
        optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
        return loss

    net(tf.zeros((1, WINDOW, 4)))
    optimizer.build(net.trainable_variables)
    mean = tf.keras.metrics.Mean()
    begin = time.monotonic()
    for step, (motion, left) in zip(range(1, steps + 1), weeks(folder, 2)):
        mean.update_state(train_step(motion, left))
        if step % 60 == 0:
            print(f"step {step}: {float(mean.result()):.5f}", flush=True)
            mean.reset_state()
    print(f"training took {time.monotonic() - begin:.2f} s")


if __name__ == "__main__":
    main()
