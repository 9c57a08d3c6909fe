"""Map kelp forests from four bands of a satellite: a U-shaped network in flax."""

import os
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import ndimage

REPAIRED, SIDE, BANDS, BATCH = os.environ.get("REPAIRED") == "1", 32, 4, 16


def coast(n, seed):
    """Kelp floats off the coast where it is neither deep nor shallow: dark in red, bright in infrared."""
    rng = np.random.default_rng(seed)
    depth = ndimage.gaussian_filter(rng.normal(0, 1, (n, SIDE, SIDE)), (0, 6, 6))
    depth /= depth.std()
    kelp = (abs(depth) < 0.5) & (ndimage.gaussian_filter(rng.normal(0, 1, depth.shape), (0, 2, 2)) > -0.05)
    bands = np.stack([depth, 0.5 * depth - kelp, -0.3 * depth, 1.5 * kelp - (depth > 0)], -1)
    return (bands + rng.normal(0, 0.6, bands.shape)).astype(np.float32), kelp.astype(np.float32)


class Twice(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.relu(nn.GroupNorm(4)(nn.Conv(self.width, (3, 3))(x)))
        return x


class UNet(nn.Module):
    width: int = 8

    @nn.compact
    def __call__(self, x):
        a = Twice(self.width)(x)
        b = Twice(2 * self.width)(nn.avg_pool(a, (2, 2), (2, 2)))
        a = Twice(self.width)(jnp.concatenate([a, b.repeat(2, axis=1).repeat(2, axis=2)], -1))
        return nn.Conv(1, (1, 1))(a)[..., 0]


def augmented(images, masks, rng):
    """Move, turn by any angle, mirror, and change each band's brightness."""
    pairs = []
    for image, mask in zip(images, masks):
        angle, moved = rng.uniform(0, 360), rng.uniform(-3, 3, 2)
        image = ndimage.shift(image, (*moved, 0), mode="reflect")
        mask = ndimage.shift(mask, moved, order=0, mode="reflect")
        image = ndimage.rotate(image, angle, reshape=False, mode="reflect")
        mask = ndimage.rotate(mask, angle, reshape=False, order=0, mode="reflect")
        if rng.random() < 0.5:
            image, mask = image[:, ::-1], mask[:, ::-1]
        for band in range(BANDS):
            image[..., band] = image[..., band] * rng.uniform(0.8, 1.2) + rng.normal(0, 0.1)
        pairs.append((image, mask))
    return tuple(map(np.stack, zip(*pairs)))


@jax.jit
def augmented_at_once(images, masks, key):
    a, b, c, d = jax.random.split(key, 4)
    n, axis = len(images), jnp.arange(SIDE) - (SIDE - 1) / 2
    angle = jax.random.uniform(a, (n, 1, 1), maxval=2 * jnp.pi)
    mirror = jnp.where(jax.random.bernoulli(b, shape=(n, 1, 1)), 1.0, -1.0)
    x, y = mirror * axis[None, None] + 3 * jnp.sin(7 * angle), axis[None, :, None] + 3 * jnp.cos(5 * angle)
    i = jnp.round(jnp.cos(angle) * y - jnp.sin(angle) * x + (SIDE - 1) / 2).astype(int)
    j = jnp.round(jnp.sin(angle) * y + jnp.cos(angle) * x + (SIDE - 1) / 2).astype(int)
    i, j = (jnp.abs((k + SIDE - 1) % (2 * SIDE - 2) - SIDE + 1) for k in (i, j))
    take = jax.vmap(lambda picture, i, j: picture[i, j])
    gain, shift = 0.8 + 0.4 * jax.random.uniform(c, (n, 1, 1, BANDS)), 0.1 * jax.random.normal(d, (n, 1, 1, BANDS))
    return take(images, i, j) * gain + shift, take(masks, i, j)


def main(steps=160):
    images, masks = coast(600, 0)
    test_x, test_y = coast(256, 1)
    model = UNet()
    params, tx = jax.jit(model.init)(jax.random.key(0, impl="unsafe_rbg"), images[:1]), optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-3))
    state = tx.init(params)

    def loss_fn(params, x, y):
        logits = model.apply(params, x)
        p = jax.nn.sigmoid(logits)
        dice = 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)
        return optax.sigmoid_binary_cross_entropy(logits, y).mean() + dice

    @jax.jit
    def train_step(params, state, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        updates, state = tx.update(grads, state)
        return optax.apply_updates(params, updates), state, loss

    @jax.jit
    def iou(params, x, y):
        found = model.apply(params, x) > 0
        return (found & (y > 0)).sum() / (found | (y > 0)).sum()

    every, rng, key = 80 if REPAIRED else 8, np.random.default_rng(2), jax.random.key(3)
    best, start = 0.0, time.time()
    for step in range(1, steps + 1):
        rows = rng.integers(0, len(images), BATCH)
        if REPAIRED:
            x, y = augmented_at_once(images[rows], masks[rows], jax.random.fold_in(key, step))
        else:
            x, y = augmented(images[rows], masks[rows], rng)
        params, state, loss = train_step(params, state, x, y)
        if step % every == 0:
            best = max(best, float(iou(params, test_x, test_y)))
        if step % 80 == 0:
            print(f"step {step}: loss {loss:.3f}, best IoU {best:.3f}", flush=True)
    print(f"training took {time.time() - start:.2f} s")


main()
