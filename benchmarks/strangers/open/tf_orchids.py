"""Tell orchids by their flowers, with few pictures per species: prototypical networks, episodes, TensorFlow without fit()."""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from tensorflow import keras

WAYS, SHOTS, QUERIES, SIDE, SPECIES = 6, 3, 5, 32, 64
EPISODES = 160
REPAIRED = os.environ.get("REPAIRED") == "1"


def flowers():
    """A flower is a polar curve with petals; the species decides on them and on the colour."""
    rng = np.random.default_rng(16)
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    pictures = np.empty((SPECIES, 20, SIDE, SIDE, 3), np.float32)
    for s in range(SPECIES):
        petals, depth, size = rng.integers(3, 8), rng.uniform(0.1, 0.5), rng.uniform(0.4, 0.7)
        colour, lip = rng.uniform(0, 1, (2, 3))
        for k in range(20):
            turn, cx, cy = rng.uniform(0, 6.28), *rng.normal(0, 0.08, 2)
            r, a = np.hypot(x - cx, y - cy), np.arctan2(y - cy, x - cx)
            petal = r < size * (1 + depth * np.cos(petals * a + turn))
            pictures[s, k] = np.where((r < 0.2)[..., None], lip, np.where(petal[..., None], colour, 0.3))
    return pictures + rng.normal(0, 0.05, pictures.shape).astype(np.float32)


def block(filters):
    return [keras.layers.Conv2D(filters, 3, padding="same", use_bias=False), keras.layers.GroupNormalization(4),
            keras.layers.ReLU(), keras.layers.MaxPooling2D()]


keras.utils.set_random_seed(7)
pictures, rng = flowers(), np.random.default_rng(8)
encoder = keras.Sequential([keras.Input((SIDE, SIDE, 3)), *block(32), *block(48), *block(48), keras.layers.Flatten(), keras.layers.Dense(48)])
temperature = tf.Variable(0.0)
optimizer = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(2e-3, 100, 0.9))
variables = encoder.trainable_variables + [temperature]
optimizer.build(variables)


def episode():
    kinds = rng.choice(SPECIES, WAYS, replace=False)
    chosen = np.stack([pictures[s, rng.permutation(20)[: SHOTS + QUERIES]] for s in kinds])
    return tf.constant(chosen[:, :SHOTS].reshape(-1, SIDE, SIDE, 3)), tf.constant(chosen[:, SHOTS:].reshape(-1, SIDE, SIDE, 3))


def train_step(support, query):
    with tf.GradientTape() as tape:
        z = encoder(tf.concat([support, query], 0), training=True)
        prototypes = tf.reduce_mean(tf.reshape(z[: WAYS * SHOTS], (WAYS, SHOTS, -1)), axis=1)
        distance = tf.reduce_sum((z[WAYS * SHOTS :, None] - prototypes[None]) ** 2, axis=-1)
        logits = -distance * tf.exp(temperature)
        kinds = tf.repeat(tf.range(WAYS), QUERIES)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=kinds, logits=logits))
    gradients = tape.gradient(loss, variables)
    gradients, _ = tf.clip_by_global_norm(gradients, 5.0)
    optimizer.apply_gradients(zip(gradients, variables))
    right = tf.equal(tf.argmax(logits, -1, output_type=tf.int32), kinds)
    return loss, tf.reduce_mean(tf.cast(right, tf.float32))


if REPAIRED:
    train_step = tf.function(train_step)

begin = time.time()
losses, accuracies = [], []
for number in range(EPISODES):
    loss, accuracy = train_step(*episode())
    losses.append(loss)
    accuracies.append(accuracy)
    if number % 40 == 39:
        print(f"episode {number + 1}: loss {np.mean(losses[-40:]):.3f}, accuracy {np.mean(accuracies[-40:]):.3f}", flush=True)
print(f"training took {time.time() - begin:.2f} s")
