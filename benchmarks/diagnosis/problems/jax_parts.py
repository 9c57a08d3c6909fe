"""A small network in JAX, and the loop's step, for the planted scripts."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax

OPTIMIZER = optax.adam(1e-3)


def network(inputs, width, layers=2, classes=10):
    """Return the parameters and the state of the optimizer."""
    sizes = [inputs, *[width] * layers, classes]
    chance = np.random.default_rng(1)
    shapes = pairwise(sizes)
    params = [jax.device_put((chance.normal(size=shape) / shape[0] ** 0.5).astype(np.float32)) for shape in shapes]
    return params, jax.jit(OPTIMIZER.init)(params)


def logits(params, x):
    """Return what the network computes."""
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer)
    return x @ params[-1]


def update(params, state, x, y):
    """Train with one batch."""

    def loss_of(params):
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


def rows(count, width):
    """Return inputs and labels."""
    chance = np.random.default_rng(0)
    return chance.normal(size=(count, width)).astype(np.float32), chance.integers(0, 10, count)
