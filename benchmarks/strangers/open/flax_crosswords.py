"""Guess the answer to a crossword clue from its words: attention in Flax (linen), clues of any length, state saved as we go."""

import bz2
import os
import pickle
import time
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

WORDS, ANSWERS, BATCH, STEPS, LONGEST = 3000, 200, 32, 110, 24
REPAIRED = os.environ.get("REPAIRED") == "1"


def clues(seed):
    rng = np.random.default_rng(seed)
    hints = rng.integers(2, WORDS, (ANSWERS, 12))
    while True:
        answer = rng.integers(0, ANSWERS, BATCH)
        length = np.minimum(2 + rng.geometric(0.3, BATCH), LONGEST)
        rows = []
        for a, n in zip(answer, length):
            words = rng.integers(2, WORDS, n)
            telling = rng.random(n) < 0.5
            words[telling] = rng.choice(hints[a], telling.sum())
            rows.append(words)
        yield rows, answer.astype("int32")


def padded(rows):
    size = LONGEST if REPAIRED else -(-max(len(words) for words in rows) // 4) * 4
    ids = np.zeros((len(rows), size), "int32")
    for row, words in zip(ids, rows):
        row[: len(words)] = words
    return ids


class Block(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x, seen):
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(y, y, mask=seen[:, None, None, :])
        y = nn.gelu(nn.Dense(2 * self.width)(nn.LayerNorm()(x)))
        return x + nn.Dense(self.width)(y)


class Solver(nn.Module):
    width: int = 96

    @nn.compact
    def __call__(self, ids):
        seen = ids > 0
        x = nn.Embed(WORDS, self.width)(ids)
        x = Block(self.width)(x, seen)
        x = (x * seen[..., None]).sum(1) / seen.sum(1, keepdims=True)
        return nn.Dense(ANSWERS)(nn.gelu(nn.Dense(4 * self.width)(x)))


def save(path, params, state):
    path.write_bytes(bz2.compress(pickle.dumps(jax.device_get((params, state)))))


def main():
    net, tx = Solver(), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(2e-3))
    params = net.init(jax.random.key(13), jnp.ones((2, LONGEST), jnp.int32))
    state = tx.init(params)

    @jax.jit
    def step_of(params, state, ids, answer):
        def loss_of(params):
            return optax.softmax_cross_entropy_with_integer_labels(net.apply(params, ids), answer).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    every = 55 if REPAIRED else 10
    began = time.time()
    for step, (rows, answer) in zip(range(1, STEPS + 1), clues(4)):
        params, state, loss = step_of(params, state, padded(rows), answer)
        if step % every == 0:
            save(Path("solver.pkl.bz2"), params, state)
        if step % 20 == 0:
            print(f"{step}: {loss:.3f}", flush=True)
    print(f"training took {time.time() - began:.2f} s")


if __name__ == "__main__":
    main()
