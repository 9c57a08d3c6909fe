"""Write poems letter by letter: a transformer in flax, with a warm-up and a decay by hand."""

import os
import random
import time
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

ALPHABET = " abcdefghijklmnopqrstuvwxyz\n,.'"
WINDOW, BATCH, STEPS = 64, 16, 280
rng = random.Random(30)
WORDS = ["".join(rng.choices(ALPHABET[1:27], k=rng.randint(2, 7))) for _ in range(400)]


def poem(lines):
    return "\n".join(" ".join(rng.choices(WORDS, k=6)) + rng.choice(",.'") for _ in range(lines))


text = np.array([ALPHABET.index(c) for c in poem(2000)], np.int32)


class Layer(nn.Module):
    width: int
    heads: int

    @nn.compact
    def __call__(self, x):
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + nn.SelfAttention(self.heads)(nn.LayerNorm()(x), mask=mask)
        y = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
        return x + nn.Dense(self.width)(y)


class Poet(nn.Module):
    width: int = 96
    layers: int = 2

    @nn.compact
    def __call__(self, letters):
        x = nn.Embed(len(ALPHABET), self.width)(letters) + nn.Embed(WINDOW, self.width)(jnp.arange(letters.shape[1]))
        for _ in range(self.layers):
            x = Layer(self.width, 4)(x)
        return nn.Dense(len(ALPHABET))(nn.LayerNorm()(x))


poet = Poet()
adam = optax.scale_by_adam()


def learning_rate(step):
    """Warm-up, then a fifth less every 40 steps."""
    return 1e-3 * min(1.0, (step // 10 + 1) / 5) * 0.8 ** (step // 40)


def loss_of(params, letters):
    logits = poet.apply(params, letters[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, letters[:, 1:]).mean()


def step_of(params, state, letters, rate):
    loss, gradients = jax.value_and_grad(loss_of)(params, letters)
    updates, state = adam.update(gradients, state, params)
    params = jax.tree.map(lambda p, u: p - rate * u, params, updates)
    return params, state, loss


if os.environ.get("REPAIRED") == "1":
    train_step = jax.jit(step_of)
else:
    train_step = partial(jax.jit, static_argnames="rate")(step_of)


def main():
    params = poet.init(jax.random.key(0), jnp.zeros((1, WINDOW), jnp.int32))
    state = adam.init(params)
    draw = np.random.default_rng(0)
    begin = time.perf_counter()
    for step in range(STEPS):
        starts = draw.integers(0, len(text) - WINDOW - 1, BATCH)
        letters = np.stack([text[s : s + WINDOW + 1] for s in starts])
        params, state, loss = train_step(params, state, letters, rate=learning_rate(step))
        if step % 50 == 0:
            print(f"{step:4d} {loss:.3f}", flush=True)
    jax.block_until_ready(params)
    print(f"training took {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
