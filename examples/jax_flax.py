"""Train a small network with Flax NNX and Optax, on generated images.

    sm-profiler run examples/jax_flax.py
    sm-profiler report sm-profiler/jax_flax-*

Nothing in here is about the profiler: each call of `train_step` is a step, the calls of `eval_step` are evaluation.
"""

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

BATCH, STEPS, EPOCHS = 64, 60, 3


class Network(nnx.Module):
    """Two convolutions and a classifier."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.second = nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.out = nnx.Linear(7 * 7 * 32, 10, rngs=rngs)

    def __call__(self, images):
        """Return the logits."""
        x = nnx.max_pool(nnx.relu(self.first(images)), (2, 2), (2, 2))
        x = nnx.max_pool(nnx.relu(self.second(x)), (2, 2), (2, 2))
        return self.out(x.reshape(len(x), -1))


def loss_of(model, images, labels):
    """Return the mean loss of a batch."""
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()


@nnx.jit
def train_step(model, optimizer, images, labels):
    """Train with a batch; return its loss."""
    loss, gradients = nnx.value_and_grad(loss_of)(model, images, labels)
    optimizer.update(model, gradients)
    return loss


@nnx.jit
def eval_step(model, images, labels):
    """Return the share of right answers."""
    return (jnp.argmax(model(images), -1) == labels).mean()


def batches(count, seed):
    """Yield generated images and labels."""
    chance = np.random.default_rng(seed)
    for _ in range(count):
        labels = chance.integers(0, 10, BATCH)
        noise = chance.normal(size=(BATCH, 28, 28, 1)).astype(np.float32)
        yield noise + labels[:, None, None, None] / 5, labels


def main():
    """Train, and evaluate after each epoch."""
    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    for epoch in range(EPOCHS):
        for images, labels in batches(STEPS, epoch):
            loss = train_step(model, optimizer, images, labels)
        right = [float(eval_step(model, images, labels)) for images, labels in batches(5, 99)]
        print(f"epoch {epoch}: loss {float(loss):.3f}, right {sum(right) / len(right):.0%}")


if __name__ == "__main__":
    main()
