"""Train a variational autoencoder whose train_step is its own, for each backend."""

import json

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(21)
BACKEND = keras.backend.backend()
latent_dim = 2


class Sampling(layers.Layer):
    """Draws z from its mean and variance."""

    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_var = inputs
        return mean + ops.exp(0.5 * log_var) * keras.random.normal(ops.shape(mean), seed=self.seed_generator)


def make_encoder():
    """Return the network from images to z."""
    inputs = keras.Input(shape=(28, 28, 1))
    hidden = layers.Conv2D(16, 3, activation="relu", strides=2, padding="same")(inputs)
    hidden = layers.Conv2D(32, 3, activation="relu", strides=2, padding="same")(hidden)
    hidden = layers.Dense(16, activation="relu")(layers.Flatten()(hidden))
    mean, log_var = layers.Dense(latent_dim)(hidden), layers.Dense(latent_dim)(hidden)
    return keras.Model(inputs, [mean, log_var, Sampling()([mean, log_var])], name="encoder")


def make_decoder():
    """Return the network from z to images."""
    inputs = keras.Input(shape=(latent_dim,))
    hidden = layers.Reshape((7, 7, 16))(layers.Dense(7 * 7 * 16, activation="relu")(inputs))
    hidden = layers.Conv2DTranspose(16, 3, activation="relu", strides=2, padding="same")(hidden)
    outputs = layers.Conv2DTranspose(1, 3, activation="sigmoid", strides=2, padding="same")(hidden)
    return keras.Model(inputs, outputs, name="decoder")


class VAE(keras.Model):
    """Both, with the loss of reconstruction and the KL divergence."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = make_encoder(), make_decoder()
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def call(self, inputs):
        return self.decoder(self.encoder(inputs)[2])

    def losses_of(self, data, mean, log_var, reconstruction):
        """Return the sum of both losses."""
        pixels = ops.mean(ops.sum(keras.losses.binary_crossentropy(data, reconstruction), axis=(1, 2)))
        divergence = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
        return pixels + ops.mean(ops.sum(divergence, axis=1))

    def train_step(self, *args):
        return {"tensorflow": self.tensorflow_step, "torch": self.torch_step, "jax": self.jax_step}[BACKEND](*args)

    def tensorflow_step(self, data):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            mean, log_var, z = self.encoder(data)
            loss = self.losses_of(data, mean, log_var, self.decoder(z))
        grads = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def torch_step(self, data):
        import torch

        data = data[0] if isinstance(data, tuple) else data
        self.zero_grad()
        mean, log_var, z = self.encoder(data)
        loss = self.losses_of(data, mean, log_var, self.decoder(z))
        loss.backward()
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def jax_step(self, state, data):
        import jax

        data = data[0] if isinstance(data, tuple) else data
        trainable, others, optimizer_variables, metrics_variables = state

        def compute(trainable, others):
            mapping = [
                *zip(self.trainable_variables, trainable, strict=True),
                *zip(self.non_trainable_variables, others, strict=True),
            ]
            with keras.StatelessScope(state_mapping=mapping) as scope:
                mean, log_var, z = self.encoder(data)
                loss = self.losses_of(data, mean, log_var, self.decoder(z))
            new = [scope.get_current_value(one) for one in self.non_trainable_variables]
            return loss, [old if one is None else one for one, old in zip(new, others, strict=True)]

        (loss, others), grads = jax.value_and_grad(compute, has_aux=True)(trainable, others)
        trainable, optimizer_variables = self.optimizer.stateless_apply(optimizer_variables, grads, trainable)
        metrics_variables = self.loss_tracker.stateless_update_state(metrics_variables, loss)
        logs = {"loss": self.loss_tracker.stateless_result(metrics_variables)}
        return logs, (trainable, others, optimizer_variables, metrics_variables)


rng = np.random.default_rng(8)
images = np.zeros((1600, 28, 28, 1), "float32")
for image, (row, column) in zip(images, rng.integers(2, 18, (1600, 2)), strict=True):
    image[row : row + 8, column : column + 8] = 1

vae = VAE()
vae.compile(optimizer=keras.optimizers.Adam())
vae(images[:2])
history = vae.fit(images, epochs=3, batch_size=50, verbose=2)
drawn = vae.decoder.predict(rng.normal(size=(64, latent_dim)).astype("float32"), batch_size=16, verbose=0)
print(drawn.shape)

steps = {"TRAIN": int(vae.optimizer.iterations), "PREDICT": 4}
print(json.dumps({"steps": steps, "losses": history.history["loss"]}))
