"""Seismic waves: when does the S wave arrive? Dilated convolutions in Flax."""

import time
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state


@dataclass(frozen=True)
class Settings:
    samples: int = 512
    width: int = 48
    dilations: tuple = (1, 2, 4, 8, 16, 32)
    batch: int = 24
    epochs: int = 3
    lr: float = 1e-3


S = Settings()


class Gated(nn.Module):
    width: int
    dilation: int

    @nn.compact
    def __call__(self, x):
        h = nn.LayerNorm()(x)
        h = nn.Conv(2 * self.width, (3,), kernel_dilation=self.dilation)(h)
        a, b = jnp.split(h, 2, axis=-1)
        return x + nn.Dense(self.width)(jnp.tanh(a) * nn.sigmoid(b))


class Picker(nn.Module):
    @nn.compact
    def __call__(self, waves):
        x = nn.Conv(S.width, (7,))(waves)
        for dilation in S.dilations:
            x = Gated(S.width, dilation)(x)
        return nn.Dense(1)(x)[..., 0]


def earthquakes(n, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(S.samples)
    arrival = rng.integers(60, S.samples - 60, n)
    since = np.maximum(t - arrival[:, None], 0)
    wave = np.where(since > 0, np.exp(-since / 60) * np.sin(since * rng.uniform(0.2, 0.8, (n, 1))), 0)
    waves = wave[..., None] * rng.normal(0, 1, (n, 1, 3)) + 0.1 * rng.normal(0, 1, (n, S.samples, 3))
    return waves.astype(np.float32), arrival.astype(np.int32)


@jax.jit
def train_step(state, waves, arrival):
    def loss_fn(params):
        logits = state.apply_fn({"params": params}, waves)
        return optax.softmax_cross_entropy_with_integer_labels(logits, arrival).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


@jax.jit
def error(state, waves, arrival):
    picked = state.apply_fn({"params": state.params}, waves).argmax(-1)
    return jnp.abs(picked - arrival).mean()


def main():
    x, y = earthquakes(48 * S.batch, 0)
    x_test, y_test = earthquakes(96, 1)
    model = Picker()
    params = model.init(jax.random.key(1), x[: S.batch])["params"]
    steps = S.epochs * len(x) // S.batch
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(S.lr, steps)))
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    rng = np.random.default_rng(4)
    start = time.time()
    for epoch in range(S.epochs):
        losses = []
        for rows in rng.permutation(len(x)).reshape(-1, S.batch):
            state, loss = train_step(state, x[rows], y[rows])
            losses.append(loss)
        print(f"epoch {epoch}: loss {np.mean(jax.device_get(losses)):.3f}, off by {error(state, x_test, y_test):.1f} samples")
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
