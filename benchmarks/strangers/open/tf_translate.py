"""Translate dates ("3rd of May 97") into ISO format: a GRU encoder and decoder in plain TensorFlow."""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)
REPAIRED = os.environ.get("REPAIRED") == "1"
VOCAB, UNITS, BATCH, STEPS = 60, 96, 32, 240
rng = np.random.default_rng(0)


class DateTranslator(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed = keras.layers.Embedding(VOCAB, 32)
        self.encoder = keras.layers.GRU(UNITS, return_state=True)
        self.decoder = keras.layers.GRU(UNITS, return_sequences=True)
        self.out = keras.layers.Dense(VOCAB)

    def call(self, inputs):
        source, target = inputs
        _, state = self.encoder(self.embed(source))
        return self.out(self.decoder(self.embed(target), initial_state=state))


def batch(step):
    length = int(rng.integers(12, 13 + step // 10))
    width = 36 if REPAIRED else length
    source = np.zeros((BATCH, width), np.int32)
    source[:, :length] = rng.integers(1, VOCAB, (BATCH, length))
    target = rng.integers(1, VOCAB, (BATCH, 11)).astype(np.int32)
    return source, target


model = DateTranslator()
optimizer = keras.optimizers.Adam(1e-3)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def train_step(source, target):
    with tf.GradientTape() as tape:
        logits = model((source, target[:, :-1]), training=True)
        loss = loss_fn(target[:, 1:], logits)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


t0 = time.time()
mean = keras.metrics.Mean()
for step in range(STEPS):
    source, target = batch(step)
    mean.update_state(train_step(source, target))
    if step % 60 == 59:
        tf.print("step", step + 1, "loss", mean.result())
        mean.reset_state()
print(f"training took {time.time() - t0:.2f} s")
