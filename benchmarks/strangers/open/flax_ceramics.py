"""Sort sherds of pottery by their decoration: photos at any angle, a convolutional net in Flax NNX, the best one is kept."""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from scipy import ndimage

SIDE, CLASSES, BATCH, STEPS = 48, 7, 32, 180
REPAIRED = os.environ.get("REPAIRED") == "1"


def sherds(n, seed):
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, CLASSES, n)
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    images = np.empty((n, SIDE, SIDE), "float32")
    for i, k in enumerate(kind):
        pitch = 3 + 2 * k
        images[i] = np.sin(2 * np.pi * pitch * y + (k % 3) * np.sin(2 * np.pi * 4 * x) + rng.uniform(0, 6))
    return images + rng.normal(0, 0.5, images.shape).astype("float32"), kind.astype("int32")


def turned(image, rng):
    """The sherd as it lies on the table: turned, a bit nearer or further away."""
    image = ndimage.rotate(image, rng.uniform(0, 360), reshape=False, order=5, mode="reflect")
    size = rng.uniform(1.0, 1.3)
    image = ndimage.zoom(image, size, order=5)
    y, x = rng.integers(0, image.shape[0] - SIDE + 1, 2)
    return image[y : y + SIDE, x : x + SIDE]


def batches(images, kind, seed):
    rng = np.random.default_rng(seed)
    if REPAIRED:
        album = np.stack([turned(image, rng) for image in images])
    while True:
        rows = rng.integers(0, len(images), BATCH)
        if REPAIRED:
            quarter = np.rot90(album[rows], int(rng.integers(4)), (1, 2))
            yield np.ascontiguousarray(quarter)[..., None], kind[rows]
        else:
            yield np.stack([turned(image, rng) for image in images[rows]])[..., None], kind[rows]


class Sorter(nnx.Module):
    def __init__(self, rngs):
        self.a = nnx.Conv(1, 24, (5, 5), strides=2, rngs=rngs)
        self.b = nnx.Conv(24, 48, (3, 3), strides=2, rngs=rngs)
        self.c = nnx.Conv(48, 64, (3, 3), rngs=rngs)
        self.norms = nnx.List([nnx.GroupNorm(width, 8, rngs=rngs) for width in (24, 48, 64)])
        self.head = nnx.Linear(64, CLASSES, rngs=rngs)

    def __call__(self, x):
        for layer, norm in zip((self.a, self.b, self.c), self.norms):
            x = nnx.gelu(norm(layer(x)))
        return self.head(x.mean((1, 2)))


def cross_entropy(model, x, kind):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), kind).mean()


@nnx.jit
def train_step(model, optimizer, x, kind):
    loss, grads = nnx.value_and_grad(cross_entropy)(model, x, kind)
    optimizer.update(model, grads)
    return loss


@nnx.jit
def right(model, x, kind):
    return (model(x).argmax(-1) == kind).sum()


def score(model, x, kind):
    return sum(int(right(model, x[i : i + 100], kind[i : i + 100])) for i in range(0, len(x), 100)) / len(x)


def main():
    images, kind = sherds(600, 1)
    rng = np.random.default_rng(5)
    test_x, test_kind = sherds(700, 2)
    test_x = np.stack([turned(image, rng) for image in test_x])[..., None]
    model = Sorter(nnx.Rngs(4))
    optimizer = nnx.Optimizer(model, optax.adamw(2e-3), wrt=nnx.Param)
    data = batches(images, kind, 3)
    next(data)
    best, kept, every = 0.0, None, 40 if REPAIRED else 6
    start = time.time()
    for step in range(1, STEPS + 1):
        x, k = next(data)
        loss = train_step(model, optimizer, x, k)
        if step % every == 0:
            accuracy = score(model, test_x, test_kind)
            if accuracy >= best:
                best, kept = accuracy, jax.tree.map(jnp.copy, nnx.state(model))
        if step % 20 == 0:
            print(f"step {step}: loss {loss:.3f}, best {best:.3f}", flush=True)
    print(f"training took {time.time() - start:.2f} s")
    assert kept is not None


if __name__ == "__main__":
    main()
