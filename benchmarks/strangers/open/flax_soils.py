"""Nutrients of soil from near-infrared spectra: a mixture of experts in flax, look-ahead and Adam with optax."""

import os
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

BANDS, TARGETS, EXPERTS, BATCH = 256, 6, 8, 64


class Expert(nn.Module):
    @nn.compact
    def __call__(self, x):
        for width in (64, 64, 32):
            x = nn.LayerNorm()(nn.silu(nn.Dense(width)(x)))
        return nn.Dense(TARGETS)(x)


class Mixture(nn.Module):
    @nn.compact
    def __call__(self, spectra):
        x = nn.silu(nn.Conv(12, (9,), strides=4)(spectra[..., None]))
        x = nn.silu(nn.Conv(24, (9,), strides=4)(x)).reshape(len(x), -1)
        share = nn.softmax(nn.Dense(EXPERTS)(x))
        every = jnp.stack([Expert(name=f"expert{i}")(x) for i in range(EXPERTS)], axis=1)
        return (share[..., None] * every).sum(1), share


def samples(n, seed):
    """Spectra are mixtures of six broad absorptions; the amounts of them are to be found."""
    rng = np.random.default_rng(seed)
    amount = rng.gamma(2, 0.5, (n, TARGETS))
    places = np.linspace(30, 220, TARGETS)[:, None]
    absorption = np.exp(-(((np.arange(BANDS) - places) / 25) ** 2))
    spectra = np.log1p(amount @ absorption) + rng.normal(0, 0.02, (n, BANDS)) + rng.normal(0, 0.1, (n, 1))
    return spectra.astype(np.float32), amount.astype(np.float32)


def make_training(model, tx):
    def loss_fn(params, spectra, amount):
        guess, share = model.apply({"params": params}, spectra)
        balance = EXPERTS * (share.mean(0) ** 2).sum()
        return optax.huber_loss(guess, amount).mean() + 0.01 * balance

    gradient = jax.jit(jax.value_and_grad(loss_fn))

    def step(params, state, spectra, amount):
        loss, grads = gradient(params, spectra, amount)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    return jax.jit(step, donate_argnums=(0, 1)) if os.environ.get("REPAIRED") == "1" else step


def main(epochs=6):
    spectra, amount = samples(4096, 0)
    test = samples(512, 1)
    model = Mixture()
    params = model.init(jax.random.key(9), spectra[:2])["params"]
    steps = epochs * len(spectra) // BATCH
    rate = optax.warmup_cosine_decay_schedule(0, 3e-3, steps // 10, steps)
    tx = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(),
        optax.add_decayed_weights(1e-4, mask=lambda p: jax.tree.map(lambda leaf: leaf.ndim > 1, p)),
        optax.scale_by_learning_rate(rate),
    )
    state = tx.init(params)
    step = make_training(model, tx)
    error = jax.jit(lambda p, x, y: jnp.abs(model.apply({"params": p}, x)[0] - y).mean())
    rng = np.random.default_rng(2)
    start = time.time()
    for epoch in range(epochs):
        losses = []
        for rows in rng.permutation(len(spectra)).reshape(-1, BATCH):
            params, state, loss = step(params, state, spectra[rows], amount[rows])
            losses.append(loss)
        print(f"epoch {epoch}: loss {np.mean(jax.device_get(losses)):.4f}, test {error(params, *test):.4f}", flush=True)
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
