"""Train a GAN: a train_step with two optimizers, for each backend."""

import json

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(31)
BACKEND = keras.backend.backend()
latent_dim = 16

discriminator = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        layers.Conv2D(16, 4, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2D(32, 4, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.GlobalMaxPooling2D(),
        layers.Dense(1),
    ],
    name="discriminator",
)
generator = keras.Sequential(
    [
        keras.Input((latent_dim,)),
        layers.Dense(7 * 7 * 16),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Reshape((7, 7, 16)),
        layers.Conv2DTranspose(16, 4, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2DTranspose(1, 4, strides=2, padding="same", activation="sigmoid"),
    ],
    name="generator",
)


class GAN(keras.Model):
    """A generator and a discriminator, trained in turns."""

    def __init__(self):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.d_tracker, self.g_tracker = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.built = True

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn
        self.d_optimizer.build(self.discriminator.trainable_variables)
        self.g_optimizer.build(self.generator.trainable_variables)

    @property
    def metrics(self):
        return [self.d_tracker, self.g_tracker]

    def latent(self, count):
        """Draw points of the latent space."""
        return keras.random.normal((count, latent_dim), seed=self.seed_generator)

    def d_loss(self, real):
        """Return the loss of the discriminator."""
        size = real.shape[0] or ops.shape(real)[0]
        shown = ops.concatenate([self.generator(self.latent(size)), real], axis=0)
        labels = ops.concatenate([ops.ones((size, 1)), ops.zeros((size, 1))], axis=0)
        return self.loss_fn(labels, self.discriminator(shown))

    def g_loss(self, size):
        """Return the loss of the generator."""
        return self.loss_fn(ops.zeros((size, 1)), self.discriminator(self.generator(self.latent(size))))

    def logs(self):
        return {one.name: one.result() for one in self.metrics}

    def train_step(self, *args):
        return {"tensorflow": self.tensorflow_step, "torch": self.torch_step}[BACKEND](*args)

    def tensorflow_step(self, real):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            d_loss = self.d_loss(real)
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights, strict=True))
        with tf.GradientTape() as tape:
            g_loss = self.g_loss(tf.shape(real)[0])
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights, strict=True))
        self.d_tracker.update_state(d_loss)
        self.g_tracker.update_state(g_loss)
        return self.logs()

    def torch_step(self, real):
        import torch

        real = real[0] if isinstance(real, tuple) else real
        self.zero_grad()
        d_loss = self.d_loss(real)
        d_loss.backward()
        weights = list(self.discriminator.trainable_weights)
        with torch.no_grad():
            self.d_optimizer.apply([one.value.grad for one in weights], weights)
        self.zero_grad()
        g_loss = self.g_loss(real.shape[0])
        g_loss.backward()
        weights = list(self.generator.trainable_weights)
        with torch.no_grad():
            self.g_optimizer.apply([one.value.grad for one in weights], weights)
        self.d_tracker.update_state(d_loss)
        self.g_tracker.update_state(g_loss)
        return self.logs()


def train_with_jax(gan, images, batch_size, epochs):
    """Train as Keras's guide for JAX does it: the state of two networks in a loop of one's own."""
    import jax

    d, g, losses = gan.discriminator, gan.generator, []
    d_opt, g_opt = gan.d_optimizer, gan.g_optimizer

    def d_compute(d_vars, d_rest, g_vars, g_rest, noise, real):
        drawn, _ = g.stateless_call(g_vars, g_rest, noise)
        shown = ops.concatenate([drawn, real], axis=0)
        labels = ops.concatenate([ops.ones((len(real), 1)), ops.zeros((len(real), 1))], axis=0)
        scores, _ = d.stateless_call(d_vars, d_rest, shown)
        return gan.loss_fn(labels, scores)

    def g_compute(g_vars, g_rest, d_vars, d_rest, noise):
        drawn, _ = g.stateless_call(g_vars, g_rest, noise)
        scores, _ = d.stateless_call(d_vars, d_rest, drawn)
        return gan.loss_fn(ops.zeros((len(noise), 1)), scores)

    @jax.jit
    def train_step(state, noise, real):
        d_vars, d_rest, d_state, g_vars, g_rest, g_state = state
        d_loss, grads = jax.value_and_grad(d_compute)(d_vars, d_rest, g_vars, g_rest, noise[0], real)
        d_vars, d_state = d_opt.stateless_apply(d_state, grads, d_vars)
        g_loss, grads = jax.value_and_grad(g_compute)(g_vars, g_rest, d_vars, d_rest, noise[1])
        g_vars, g_state = g_opt.stateless_apply(g_state, grads, g_vars)
        return (d_vars, d_rest, d_state, g_vars, g_rest, g_state), d_loss, g_loss

    def values(variables):
        return [one.value for one in variables]

    state = (values(d.trainable_variables), values(d.non_trainable_variables), values(d_opt.variables))
    state += (values(g.trainable_variables), values(g.non_trainable_variables), values(g_opt.variables))
    draws = np.random.default_rng(2)
    for epoch in range(epochs):
        order = draws.permutation(len(images))
        for at in range(0, len(images), batch_size):
            noise = draws.normal(size=(2, batch_size, latent_dim)).astype("float32")
            state, d_loss, g_loss = train_step(state, noise, images[order[at : at + batch_size]])
        losses.append([float(d_loss), float(g_loss)])
        print(f"epoch {epoch}: {losses[-1]}")
    return losses, epochs * len(images) // batch_size


rng = np.random.default_rng(1)
images = np.zeros((1280, 28, 28, 1), "float32")
for image, (row, column) in zip(images, rng.integers(4, 16, (1280, 2)), strict=True):
    image[row : row + 9, column : column + 4] = 1

gan = GAN()
gan.compile(
    d_optimizer=keras.optimizers.Adam(0.0003),
    g_optimizer=keras.optimizers.Adam(0.0003),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
if BACKEND == "jax":
    losses, count = train_with_jax(gan, images, 32, 3)
else:
    history = gan.fit(images, batch_size=32, epochs=3, verbose=2)
    losses, count = [history.history["d_loss"], history.history["g_loss"]], int(gan.d_optimizer.iterations)
print(json.dumps({"steps": {"TRAIN": count}, "losses": losses}))
