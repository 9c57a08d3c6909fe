"""Currents in a strait from tide gauges: an ensemble of small networks in JAX, one optimizer for all of them."""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

GAUGES, HOURS, STEPS, BATCH = 6, 24, 260, 256


def strait(n, seed):
    rng = np.random.default_rng(seed)
    period = np.array([12.42, 12.0, 25.82, 23.93])
    t0 = rng.uniform(0, 8000, (n, 1, 1))
    hours = t0 + np.arange(HOURS)[None, :, None]
    levels = sum(a * np.cos(2 * np.pi * hours / p + np.arange(GAUGES) * 0.3) for a, p in zip((2, 0.8, 0.4, 0.3), period))
    levels = levels + rng.normal(0, 0.1, levels.shape) + rng.normal(0, 0.3, (n, 1, 1))
    slope = levels[:, -1, 0] - levels[:, -1, -1]
    current = np.sign(slope) * np.sqrt(np.abs(slope)) + 0.2 * (levels[:, -1] - levels[:, -4]).mean(-1)
    return levels.reshape(n, -1).astype("float32"), current.astype("float32")


def network(key, sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        key, one = jax.random.split(key)
        layers.append({"w": jax.random.normal(one, (a, b)) * (2 / a) ** 0.5, "b": jnp.zeros(b),
                       "scale": jnp.ones(a), "shift": jnp.zeros(a)})
    return layers


def predict(layers, x):
    for i, layer in enumerate(layers):
        centred = x - x.mean(-1, keepdims=True)
        x = centred * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * layer["scale"] + layer["shift"]
        x = x @ layer["w"] + layer["b"]
        if i + 1 < len(layers):
            x = jax.nn.silu(x)
    return x.squeeze(-1)


def loss_of(ensemble, x, y):
    each = jnp.stack([predict(layers, x) for layers in ensemble])
    return optax.huber_loss(each, y[None]).mean(1).sum()


optimizer = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(optax.warmup_cosine_decay_schedule(0, 2e-3, 50, STEPS), weight_decay=1e-3),
)
value_and_grad = jax.jit(jax.value_and_grad(loss_of))


def update(ensemble, state, x, y):
    loss, gradients = value_and_grad(ensemble, x, y)
    updates, state = optimizer.update(gradients, state, ensemble)
    ensemble = optax.apply_updates(ensemble, updates)
    return ensemble, state, loss


if os.environ.get("REPAIRED") == "1":
    update = jax.jit(update)


def main():
    x, y = strait(20_000, 1)
    test_x, test_y = strait(1000, 2)
    keys = jax.random.split(jax.random.PRNGKey(5), 4)
    ensemble = [network(key, [GAUGES * HOURS, 192, 192, 192, 1]) for key in keys]
    state = optimizer.init(ensemble)
    rng = np.random.default_rng(9)
    losses = []
    start = time.time()
    for step in range(STEPS):
        rows = rng.integers(0, len(x), BATCH)
        ensemble, state, loss = update(ensemble, state, x[rows], y[rows])
        losses.append(loss)
        if step % 100 == 99:
            print(f"step {step + 1}: {np.mean(jax.device_get(losses[-100:])):.4f}", flush=True)
    jax.block_until_ready(ensemble)
    took = time.time() - start
    mean = sum(predict(layers, test_x) for layers in ensemble) / len(ensemble)
    print(f"off by {float(jnp.abs(mean - test_y).mean()):.3f} knots")
    print(f"training took {took:.2f} s")


if __name__ == "__main__":
    main()
