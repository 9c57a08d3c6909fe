"""Daily profiles of cortisol and melatonin in a beta-VAE: a training loop of our own in TensorFlow, KL is warmed up."""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

HOURS, LATENT, BATCH = 48, 8, 64
EPOCHS, WARM_UP = 18, 10


def profiles(n, seed=0):
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 2, HOURS, dtype="float32")
    shift, height, sharp = rng.normal(0, 0.05, (n, 1)), rng.lognormal(0, 0.3, (n, 2)), rng.uniform(2, 6, (n, 1))
    cortisol = height[:, :1] * np.exp(sharp * (np.cos(2 * np.pi * (t - 0.33 - shift)) - 1))
    melatonin = height[:, 1:] * np.exp(sharp * (np.cos(2 * np.pi * (t - 0.08 - shift)) - 1))
    both = np.stack([cortisol, melatonin], -1) + rng.normal(0, 0.05, (n, HOURS, 2))
    return both.astype("float32")


class VAE(tf.keras.Model):
    def __init__(self, width=64):
        super().__init__()
        conv, dense = tf.keras.layers.Conv1D, tf.keras.layers.Dense
        self.encoder = tf.keras.Sequential([
            conv(width, 5, padding="same", activation="gelu"),
            conv(width, 5, strides=2, padding="same", activation="gelu"),
            conv(2 * width, 3, strides=2, padding="same", activation="gelu"),
            tf.keras.layers.Flatten(),
            dense(256, activation="gelu"),
            tf.keras.layers.LayerNormalization(),
            dense(2 * LATENT),
        ])
        self.decoder = tf.keras.Sequential([
            dense(256, activation="gelu"),
            dense(HOURS // 4 * 2 * width, activation="gelu"),
            tf.keras.layers.Reshape((HOURS // 4, 2 * width)),
            tf.keras.layers.UpSampling1D(2),
            conv(width, 3, padding="same", activation="gelu"),
            tf.keras.layers.UpSampling1D(2),
            conv(width, 5, padding="same", activation="gelu"),
            conv(2, 5, padding="same"),
        ])

    def call(self, x):
        mean, log_var = tf.split(self.encoder(x), 2, axis=-1)
        z = mean + tf.exp(0.5 * log_var) * tf.random.normal(tf.shape(mean))
        return self.decoder(z), mean, log_var


model = VAE()
optimizer = tf.keras.optimizers.Adam(1e-3)


@tf.function
def train_step(x, beta):
    with tf.GradientTape() as tape:
        restored, mean, log_var = model(x, training=True)
        error = tf.reduce_mean(tf.reduce_sum(tf.square(restored - x), (1, 2)))
        kl = -0.5 * tf.reduce_mean(tf.reduce_sum(1 + log_var - mean**2 - tf.exp(log_var), -1))
        loss = error + beta * kl
    gradients = tape.gradient(loss, model.trainable_variables)
    gradients, _ = tf.clip_by_global_norm(gradients, 5.0)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return error, kl


def main():
    tf.random.set_seed(15)
    data = tf.data.Dataset.from_tensor_slices(profiles(900)).shuffle(900, seed=1).batch(BATCH, drop_remainder=True).prefetch(2)
    model(tf.zeros((1, HOURS, 2)))
    start = time.time()
    for epoch in range(EPOCHS):
        beta = 0.5 * min(1.0, epoch / WARM_UP)
        if os.environ.get("REPAIRED") == "1":
            beta = tf.constant(beta)
        for x in data:
            error, kl = train_step(x, beta)
        if epoch % 5 == 0:
            print(f"epoch {epoch}: error {error.numpy():.3f}, KL {kl.numpy():.3f}", flush=True)
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
