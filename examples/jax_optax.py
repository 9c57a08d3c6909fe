"""Fit a regression with plain JAX and Optax; mark the steps for JAX's own profiler, too.

    sm-profiler run examples/jax_optax.py
    sm-profiler report sm-profiler/jax_optax-*

`StepTraceAnnotation` marks the steps, so that fetching the batch and reading the loss belong to it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

STEPS, BATCH, WIDTH = 400, 256, 128
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-2, STEPS)))


def predict(params, x):
    """Return the network's output."""
    return (jnp.tanh(x @ params["hidden"]) @ params["out"])[:, 0]


@jax.jit
def train_step(params, state, x, y):
    """Train with a batch."""
    loss, gradients = jax.value_and_grad(lambda params: ((predict(params, x) - y) ** 2).mean())(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


def main():
    """Train, and read the loss every 50 steps only: each read waits for all steps before it."""
    chance = np.random.default_rng(0)
    keys = jax.random.split(jax.random.key(0))
    params = {
        "hidden": jax.random.normal(keys[0], (8, WIDTH)) * 0.3,
        "out": jax.random.normal(keys[1], (WIDTH, 1)) * 0.1,
    }
    state = OPTIMIZER.init(params)
    for step in range(STEPS):
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            x = chance.normal(size=(BATCH, 8)).astype(np.float32)
            y = np.sin(x.sum(1))
            params, state, loss = train_step(params, state, x, y)
            if step % 50 == 49:
                print(f"step {step + 1}: loss {float(loss):.4f}")


if __name__ == "__main__":
    main()
