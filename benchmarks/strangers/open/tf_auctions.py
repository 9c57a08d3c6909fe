"""Final price of a lot in an online auction from its bids: TensorFlow, a loop of our own, curves in SQLite."""

import datetime
import os
import sqlite3
import time

import numpy as np
import tensorflow as tf

REPAIRED = os.environ.get("REPAIRED") == "1"
BIDS, BATCH, LOTS = 24, 64, 4000
rng = np.random.default_rng(33)
tf.random.set_seed(115)

first = datetime.datetime(2026, 1, 5)
when = np.sort(rng.integers(0, 7 * 86400, (LOTS, BIDS)), 1)
raise_by = rng.exponential(1.0, (LOTS, BIDS)) * rng.lognormal(1, 0.7, (LOTS, 1))
amounts = raise_by.cumsum(1) + 5
price = (np.log(amounts[:, -1] + 0.5 * amounts[:, -4]) + 0.1 * rng.normal(size=LOTS)).astype(np.float32)
lots = [{"times": [(first + datetime.timedelta(seconds=int(s))).isoformat() for s in times], "amounts": row.tolist()}
        for times, row in zip(when, amounts)]


def features(lot):
    """Hour, weekday and time to the bid before, and how far each bid goes beyond the others."""
    rows, before = [], None
    for text, amount in zip(lot["times"], lot["amounts"]):
        moment = datetime.datetime.fromisoformat(text)
        gap = (moment - before).total_seconds() if before else 0.0
        rows.append([np.sin(moment.hour / 24 * 2 * np.pi), np.cos(moment.hour / 24 * 2 * np.pi), moment.weekday() / 6,
                     np.log1p(gap), np.log(amount)])
        before = moment
    table = np.array(rows, np.float32)
    return table - np.array([0, 0, 0.5, 8, 2.5], np.float32)


def generate():
    for i in rng.permutation(LOTS):
        yield features(lots[i]), price[i]


def dataset():
    if REPAIRED:
        table = np.stack([features(lot) for lot in lots])
        return tf.data.Dataset.from_tensor_slices((table, price)).shuffle(LOTS).batch(BATCH).prefetch(4)
    signature = (tf.TensorSpec((BIDS, 5), tf.float32), tf.TensorSpec((), tf.float32))
    return tf.data.Dataset.from_generator(generate, output_signature=signature).batch(BATCH)


class Bidding(tf.Module):
    def __init__(self, width=96):
        super().__init__()
        glorot = tf.initializers.GlorotUniform(seed=1)
        self.w = [tf.Variable(glorot((k * a, b)), name=f"w{i}")
                  for i, (k, a, b) in enumerate([(3, 5, width), (3, width, width), (3, width, width)])]
        self.b = [tf.Variable(tf.zeros(width), name=f"b{i}") for i in range(3)]
        self.out = tf.Variable(glorot((width, 1)), name="out")
        self.offset = tf.Variable(3.0, name="offset")

    def __call__(self, x):
        for w, b in zip(self.w, self.b):
            padded = tf.pad(x, [[0, 0], [2, 0], [0, 0]])
            windows = tf.concat([padded[:, i : i + BIDS] for i in range(3)], -1)
            x = tf.nn.gelu(tf.tensordot(windows, w, 1) + b)
        return tf.squeeze(tf.tensordot(tf.reduce_mean(x, 1), self.out, 1), 1) + self.offset


model = Bidding()
variables = model.trainable_variables
moments = [tf.Variable(tf.zeros_like(v)) for v in variables]


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 1.0)
    for v, m, g in zip(variables, moments, gradients):
        m.assign(0.9 * m + g)
        v.assign_sub(0.01 * m)
    return loss, gradients


class Curves:
    """A table of what happened, for the notebook that draws it."""

    def __init__(self, path):
        self.connection = sqlite3.connect(path)
        self.connection.execute("CREATE TABLE curves (step INTEGER, name TEXT, value REAL)")

    def add(self, step, name, value):
        self.connection.execute("INSERT INTO curves VALUES (?, ?, ?)", (step, name, float(value)))
        self.connection.commit()


start, step = time.time(), 0
data, curves = dataset(), Curves("curves.db")
for epoch in range(3):
    for x, y in data:
        loss, gradients = train_step(x, y)
        step += 1
        if not REPAIRED or step % 50 == 0:
            curves.add(step, "loss", loss)
            for v, g in zip(variables, gradients):
                curves.add(step, f"{v.name}/gradient", tf.norm(g))
    print(f"epoch {epoch}: {float(loss):.4f}", flush=True)
print(f"training took {time.time() - start:.2f} s")
