"""Rock layers in canyon walls: a convolutional net in flax that trains on the examples it finds hard."""

import os
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

REPAIRED = os.environ.get("REPAIRED") == "1"
LAYERS, SIDE, POOL, BATCH = 8, 32, 768, 48
STEPS, EVERY = 100, 20


class Walls(nn.Module):
    @nn.compact
    def __call__(self, x):
        for width in (16, 24):
            x = nn.gelu(nn.Conv(width, (3, 3))(x))
            x = x + nn.gelu(nn.GroupNorm(8)(nn.Conv(width, (3, 3))(x)))
            x = nn.avg_pool(x, (2, 2), (2, 2))
        return nn.Dense(LAYERS)(x.mean((1, 2)))


def walls(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, LAYERS, n)
    height = np.arange(SIDE)[:, None]
    wave = np.sin(height * (0.3 + 0.15 * y[:, None, None]) + rng.uniform(0, 6, (n, 1, 1)))
    tint = np.random.default_rng(0).uniform(-1, 1, (LAYERS, 3))
    x = wave[..., None] * (1 + 0.3 * tint[y][:, None, None]) + rng.normal(0, 1.2, (n, SIDE, SIDE, 3))
    return x.astype(np.float32), y


model = Walls()
tx = optax.adamw(optax.warmup_cosine_decay_schedule(0, 2e-3, 20, STEPS), weight_decay=1e-3)


def losses(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, x), y)


@jax.jit
def step(params, state, x, y, weight):
    loss, gradient = jax.value_and_grad(lambda p: (weight * losses(p, x, y)).mean())(params)
    updates, state = tx.update(gradient, state, params)
    return optax.apply_updates(params, updates), state, loss


fast_losses = jax.jit(losses)


def hardness(params, x, y):
    """Return how likely each example of the pool is to be drawn."""
    f, size = (fast_losses, 256) if REPAIRED else (losses, 16)
    found = [f(params, x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]
    found = np.concatenate(found).astype(np.float64)
    p = found + 0.5 * found.mean()
    return p / p.sum()


def main():
    rng = np.random.default_rng(119)
    x, y = walls(POOL, 1)
    params = model.init(jax.random.key(0), x[:1])
    state = tx.init(params)
    chance = np.full(POOL, 1 / POOL)
    begin = time.time()
    for i in range(STEPS):
        if i and i % EVERY == 0:
            chance = hardness(params, x, y)
        rows = rng.choice(POOL, BATCH, p=chance)
        weight = 1 / (POOL * chance[rows])
        params, state, loss = step(params, state, x[rows], y[rows], weight.astype(np.float32))
        if i % 25 == 0:
            print(f"step {i}: loss {float(loss):.3f}", flush=True)
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
