"""Language model on lines of dialogue: flax and optax."""

import os
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

VOCAB, DIM, BATCH, STEPS = 1000, 64, 8, 260
PAD = 80 if os.environ.get("REPAIRED") == "1" else 0


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        h = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(h, mask=mask)
        h = nn.LayerNorm()(x)
        return x + nn.Dense(DIM)(nn.gelu(nn.Dense(4 * DIM)(h)))


class Dialogue(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(VOCAB, DIM)(tokens)
        x = x + nn.Embed(96, DIM)(jnp.arange(tokens.shape[1]))
        mask = nn.make_causal_mask(tokens)
        for _ in range(2):
            x = Block()(x, mask)
        return nn.Dense(VOCAB)(x)


model = Dialogue()
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4))


def loss_fn(params, tokens):
    logits = model.apply(params, tokens[:, :-1])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    weight = tokens[:, 1:] > 0
    return (losses * weight).sum() / weight.sum()


@jax.jit
def update(params, state, tokens):
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


def batches(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(48, 80, STEPS)
    if PAD == 0:
        lengths = np.minimum(lengths, 48 + np.arange(STEPS) // 24 + rng.integers(0, 2, STEPS))
    for length in lengths:
        tokens = np.zeros((BATCH, max(PAD, length)), np.int32)
        tokens[:, :length] = rng.integers(1, VOCAB, (BATCH, length))
        yield tokens


params = model.init(jax.random.PRNGKey(0), jnp.ones((1, 16), jnp.int32))
opt_state = tx.init(params)
start = time.time()
for step, tokens in enumerate(batches(1)):
    params, opt_state, loss = update(params, opt_state, tokens)
    if step % 50 == 0:
        print(f"step {step} loss {float(loss):.3f}")
loss.block_until_ready()
print(f"training took {time.time() - start:.2f} s")
