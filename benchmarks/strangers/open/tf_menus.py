"""Menus of restaurants: a variational autoencoder of dishes, the KL term is warmed up slowly. TensorFlow, own loop."""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

DISHES, LATENT, BATCH, EPOCHS, STAGES = 600, 16, 64, 3, 30
keras.utils.set_random_seed(52)


def menus(n, seed):
    """A kitchen has its dishes, and a restaurant mixes two kitchens."""
    rng = np.random.default_rng(seed)
    kitchens = np.random.default_rng(0).dirichlet(np.full(DISHES, 0.05), 12)
    mix = rng.dirichlet(np.full(12, 0.2), n)
    return (rng.random((n, DISHES)) < 1 - np.exp(-40 * mix @ kitchens)).astype(np.float32)


def dense(sizes):
    return keras.Sequential([keras.layers.Dense(s, activation="gelu") for s in sizes[:-1]] + [keras.layers.Dense(sizes[-1])])


class MenuVAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = dense([512, 512, 2 * LATENT])
        self.decoder = dense([512, 512, DISHES])

    def call(self, x, training=False):
        mean, log_var = tf.split(self.encoder(x), 2, axis=1)
        z = mean + tf.exp(0.5 * log_var) * tf.random.normal(tf.shape(mean)) if training else mean
        return self.decoder(z), mean, log_var


model = MenuVAE()
optimizer = keras.optimizers.Adam(1e-3, clipnorm=1.0)
train_loss = keras.metrics.Mean()


@tf.function
def train_step(x, beta):
    with tf.GradientTape() as tape:
        logits, mean, log_var = model(x, training=True)
        rebuilt = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=x, logits=logits), axis=1)
        kl = -0.5 * tf.reduce_sum(1 + log_var - mean**2 - tf.exp(log_var), axis=1)
        loss = tf.reduce_mean(rebuilt + beta * kl)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    train_loss.update_state(loss)
    return loss


@tf.function
def rebuilt_share(x):
    logits, _, _ = model(x)
    return tf.reduce_sum(x * tf.cast(logits > 0, tf.float32)) / tf.reduce_sum(x)


def warmed_up(step):
    """From 0 to 1 in stages of ten steps."""
    beta = min(1.0, step // 10 / STAGES)
    return tf.constant(beta, tf.float32) if os.environ.get("REPAIRED") == "1" else beta


def main():
    data = tf.data.Dataset.from_tensor_slices(menus(8000, 1)).shuffle(2000, seed=1).batch(BATCH, drop_remainder=True)
    data = data.prefetch(2)
    test = menus(500, 2)
    model(test[:2])
    optimizer.build(model.trainable_variables)
    began = time.perf_counter()
    step = 0
    for epoch in range(EPOCHS):
        train_loss.reset_state()
        for x in data:
            train_step(x, warmed_up(step))
            step += 1
        print(f"epoch {epoch}: loss {train_loss.result():.2f}, dishes found {rebuilt_share(tf.constant(test)):.1%}", flush=True)
        model.save_weights("menus.weights.h5")
    print(f"training took {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
