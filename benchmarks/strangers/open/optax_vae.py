"""A variational autoencoder of small images: plain JAX with optax."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

SIZES = [784, 512, 256]
LATENT = 16


def dense(key, n, m):
    return {"w": jax.random.normal(key, (n, m)) * np.sqrt(2 / n), "b": jnp.zeros(m)}


def init(key):
    keys = jax.random.split(key, 6)
    return {
        "enc": [dense(keys[0], 784, 512), dense(keys[1], 512, 256), dense(keys[2], 256, 2 * LATENT)],
        "dec": [dense(keys[3], LATENT, 256), dense(keys[4], 256, 512), dense(keys[5], 512, 784)],
    }


def mlp(layers, x):
    for layer in layers[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def elbo(params, key, x):
    mean, logvar = jnp.split(mlp(params["enc"], x), 2, axis=-1)
    z = mean + jnp.exp(logvar / 2) * jax.random.normal(key, mean.shape)
    logits = mlp(params["dec"], z)
    reconstruction = optax.sigmoid_binary_cross_entropy(logits, x).sum(-1)
    divergence = -0.5 * (1 + logvar - mean**2 - jnp.exp(logvar)).sum(-1)
    return (reconstruction + divergence).mean()


tx = optax.adam(1e-3)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, state, key, x):
    loss, grads = jax.value_and_grad(elbo)(params, key, x)
    updates, state = tx.update(grads, state)
    return optax.apply_updates(params, updates), state, loss


evaluate = jax.jit(elbo)


def main():
    rng = np.random.default_rng(0)
    images = (rng.random((12800, 784)) > 0.7).astype(np.float32)
    held_out = (rng.random((512, 784)) > 0.7).astype(np.float32)
    key = jax.random.PRNGKey(1)
    params = init(key)
    state = tx.init(params)
    start = time.perf_counter()
    for epoch in range(5):
        order = rng.permutation(len(images))
        for n in range(0, len(images), 128):
            key, sub = jax.random.split(key)
            params, state, loss = train_step(params, state, sub, images[order[n : n + 128]])
            if n // 128 % 50 == 0:
                print(f"epoch {epoch} step {n // 128} loss {float(loss):.1f}")
        print(f"epoch {epoch} held out {float(evaluate(params, key, held_out)):.1f}")
    jnp.savez("vae.npz", *jax.tree.leaves(params))
    print(f"training took {time.perf_counter() - start:.2f} s")


main()
