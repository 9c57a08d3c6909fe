"""Trainings with JAX as their users write them: run by test_jax_strangers.py, on their own or with sm-profiler run.

    python jax_strangers.py SCENARIO

Each prints one JSON object: the number of its training and evaluation steps, and a digest of its losses and parameters.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
import tempfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

CHANCE = np.random.default_rng(0)
X, Y = CHANCE.normal(size=(512, 16)).astype(np.float32), CHANCE.integers(0, 4, 512)
COUNTS = {"train": 0, "eval": 0}
DIGEST = hashlib.sha256()


def see(*trees):
    for leaf in jax.tree.leaves(trees):
        DIGEST.update(np.asarray(leaf).tobytes())


def init_mlp(sizes, key):
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (m, n)) * jnp.sqrt(2 / m), jnp.zeros(n))
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def predict(params, x):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def cross_entropy(logits, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def shuffled(size=32):
    order = CHANCE.permutation(len(X))
    for at in range(0, len(X), size):
        rows = order[at : at + size]
        yield X[rows], Y[rows]


def pure_mlp():
    """The tutorial's MLP: plain gradient descent, accuracy on both halves after each epoch."""
    params = init_mlp([16, 32, 4], jax.random.key(0))

    @jax.jit
    def update(params, x, y):
        gradients = jax.grad(lambda p: cross_entropy(predict(p, x), y))(params)
        return [(w - 0.1 * dw, b - 0.1 * db) for (w, b), (dw, db) in zip(params, gradients, strict=True)]

    @jax.jit
    def accuracy(params, x, y):
        return jnp.mean(jnp.argmax(predict(params, x), axis=1) == y)

    for _ in range(3):
        for x, y in shuffled():
            params = update(params, x, y)
            COUNTS["train"] += 1
        for half in (slice(0, 256), slice(256, None)):
            see(accuracy(params, X[half], Y[half]))
            COUNTS["eval"] += 1
    see(params)


def aux_and_state():
    """value_and_grad with has_aux in a flax TrainState with batch statistics and dropout."""
    from flax import linen as nn
    from flax.training import train_state

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, *, train):
            x = nn.BatchNorm(use_running_average=not train)(nn.Dense(32)(x))
            return nn.Dense(4)(nn.Dropout(0.1, deterministic=not train)(nn.relu(x)))

    class State(train_state.TrainState):
        batch_stats: dict

    model = Net()
    variables = model.init(jax.random.key(0), X[:1], train=False)
    state = State.create(
        apply_fn=model.apply, params=variables["params"], batch_stats=variables["batch_stats"], tx=optax.adamw(1e-3)
    )

    @jax.jit
    def train_step(state, x, y, key):
        def loss_fn(params):
            logits, updates = state.apply_fn(
                {"params": params, "batch_stats": state.batch_stats}, x, train=True, mutable=["batch_stats"],
                rngs={"dropout": key},
            )  # fmt: skip
            return cross_entropy(logits, y), (logits, updates)

        (loss, (logits, updates)), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        state = state.apply_gradients(grads=gradients, batch_stats=updates["batch_stats"])
        return state, {"loss": loss, "accuracy": (logits.argmax(-1) == y).mean()}

    @jax.jit
    def eval_step(state, x, y):
        logits = state.apply_fn({"params": state.params, "batch_stats": state.batch_stats}, x, train=False)
        return cross_entropy(logits, y)

    key = jax.random.key(1)
    for _ in range(2):
        metrics = []
        for x, y in shuffled():
            key, used = jax.random.split(key)
            state, one = train_step(state, x, y, used)
            metrics.append(one)
            COUNTS["train"] += 1
        see(jax.device_get(metrics))
        for x, y in shuffled(128):
            see(eval_step(state, x, y))
            COUNTS["eval"] += 1


def accumulation():
    """optax.MultiSteps: the optimizer steps with every fourth micro-batch."""
    params = init_mlp([16, 32, 4], jax.random.key(0))
    tx = optax.MultiSteps(optax.adam(1e-3), every_k_schedule=4)
    state = tx.init(params)

    @partial(jax.jit, donate_argnums=(0, 1))
    def micro_step(params, state, x, y):
        loss, gradients = jax.value_and_grad(lambda p: cross_entropy(predict(p, x), y))(params)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    for x, y in shuffled(16):
        params, state, loss = micro_step(params, state, x, y)
        COUNTS["train"] += 1
        see(loss)
    see(params)


def by_hand_accumulation():
    """Gradients of four micro-batches are added up; another function applies them."""
    params = init_mlp([16, 32, 4], jax.random.key(0))
    tx = optax.sgd(0.1)
    state = tx.init(params)
    gradients_of = jax.jit(jax.value_and_grad(lambda p, x, y: cross_entropy(predict(p, x), y)))

    @jax.jit
    def add(total, gradients):
        return jax.tree.map(jnp.add, total, gradients)

    @jax.jit
    def apply(params, state, gradients):
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    batches = list(shuffled(16))
    for at in range(0, len(batches), 4):
        total = None
        for x, y in batches[at : at + 4]:
            loss, gradients = gradients_of(params, x, y)
            total = gradients if total is None else add(total, gradients)
            COUNTS["train"] += 1
            see(loss)
        params, state = apply(params, state, total)
    see(params)


def scanned_epochs():
    """A whole epoch in lax.scan; evaluation between."""
    params = init_mlp([16, 32, 4], jax.random.key(0))
    tx = optax.adam(1e-3)

    @jax.jit
    def run_epoch(carry, xs, ys):
        def body(carry, batch):
            params, state = carry
            loss, gradients = jax.value_and_grad(lambda p: cross_entropy(predict(p, batch[0]), batch[1]))(params)
            updates, state = tx.update(gradients, state, params)
            return (optax.apply_updates(params, updates), state), loss

        return jax.lax.scan(body, carry, (xs, ys))

    @jax.jit
    def evaluate(params):
        return cross_entropy(predict(params, X), Y)

    carry = (params, tx.init(params))
    for _ in range(5):
        order = CHANCE.permutation(len(X))
        carry, losses = run_epoch(carry, X[order].reshape(16, 32, 16), Y[order].reshape(16, 32))
        COUNTS["train"] += 1
        see(losses, evaluate(carry[0]))  # with each training step: part of it


def sharded():
    """Jit with shardings over two devices: batches are split, parameters replicated."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    params = jax.device_put(init_mlp([16, 32, 4], jax.random.key(0)), whole)

    @partial(jax.jit, out_shardings=(whole, whole))
    def step(params, x, y):
        loss, gradients = jax.value_and_grad(lambda p: cross_entropy(predict(p, x), y))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    for x, y in shuffled():
        params, loss = step(params, jax.device_put(x, rows), jax.device_put(y, rows))
        COUNTS["train"] += 1
        see(loss)


def mapped_shards():
    """shard_map with a mean over the devices inside jit."""
    from jax.sharding import Mesh, PartitionSpec

    shard_map = getattr(jax, "shard_map", None)
    if shard_map is None:
        from jax.experimental.shard_map import shard_map
    mesh = Mesh(np.array(jax.devices()), ("data",))
    data, whole = PartitionSpec("data"), PartitionSpec()
    params = init_mlp([16, 32, 4], jax.random.key(0))

    def local(params, x, y):
        loss, gradients = jax.value_and_grad(lambda p: cross_entropy(predict(p, x), y))(params)
        gradients = jax.lax.pmean(gradients, "data")
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), jax.lax.pmean(loss, "data")

    step = jax.jit(shard_map(local, mesh=mesh, in_specs=(whole, data, data), out_specs=(whole, whole)))
    for x, y in shuffled():
        params, loss = step(params, x, y)
        COUNTS["train"] += 1
        see(loss)


def recurrent():
    """An RNN over lax.scan, annotated steps, the loss read every tenth step, a pickle at the end of each epoch."""
    series = np.sin(np.linspace(0, 60, 600)).astype(np.float32)
    windows = np.stack([series[at : at + 21] for at in range(560)])
    key = jax.random.split(jax.random.key(0), 3)
    params = {
        "h": jax.random.normal(key[0], (16, 16)) * 0.1, "x": jax.random.normal(key[1], (1, 16)) * 0.1,
        "o": jax.random.normal(key[2], (16, 1)) * 0.1,
    }  # fmt: skip
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.rmsprop(1e-3))
    state = tx.init(params)

    def unrolled(params, x):
        def cell(h, x):
            h = jnp.tanh(h @ params["h"] + x[:, None] @ params["x"])
            return h, h

        h, _ = jax.lax.scan(cell, jnp.zeros((x.shape[0], 16)), x.T)
        return (h @ params["o"])[:, 0]

    @jax.jit
    def train_step(params, state, batch):
        def loss_fn(params):
            return jnp.mean((unrolled(params, batch[:, :-1]) - batch[:, -1]) ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(2):
            for at in range(0, 560, 28):
                with jax.profiler.StepTraceAnnotation("train", step_num=COUNTS["train"]):
                    params, state, loss = train_step(params, state, windows[at : at + 28])
                    if at % 280 == 0:
                        see(float(loss))
                COUNTS["train"] += 1
            with Path(folder, f"{epoch}.pkl").open("wb") as file:
                pickle.dump(jax.tree.map(np.asarray, (params, state)), file)
    see(params)


def autoencoder():
    """A VAE in flax nnx with its own streams of random numbers, and reconstructions now and then."""
    from flax import nnx

    class Vae(nnx.Module):
        def __init__(self, rngs):
            self.encode, self.decode = nnx.Linear(16, 8, rngs=rngs), nnx.Linear(4, 16, rngs=rngs)
            self.rngs = rngs

        def __call__(self, x):
            mean, log = jnp.split(self.encode(x), 2, axis=-1)
            z = mean + jnp.exp(0.5 * log) * jax.random.normal(self.rngs.noise(), mean.shape)
            return self.decode(z), mean, log

    model = Vae(nnx.Rngs(0, noise=1))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    def loss_fn(model, x):
        found, mean, log = model(x)
        return ((found - x) ** 2).sum(-1).mean() - 0.5 * (1 + log - mean**2 - jnp.exp(log)).sum(-1).mean()

    @nnx.jit
    def train_step(model, optimizer, x):
        loss, gradients = nnx.value_and_grad(loss_fn)(model, x)
        optimizer.update(model, gradients)
        return loss

    for _ in range(2):
        for x, _ in shuffled():
            see(train_step(model, optimizer, x))
            COUNTS["train"] += 1


def policy_gradient():
    """REINFORCE: the environment runs on the host, actions are sampled there, one update ends each episode."""
    params = init_mlp([4, 16, 2], jax.random.key(0))
    tx = optax.adam(1e-2)
    state = tx.init(params)
    policy = jax.jit(lambda params, observed: jax.nn.softmax(predict(params, observed)))

    @jax.jit
    def update(params, state, observed, actions, returns):
        def loss_fn(params):
            logs = jax.nn.log_softmax(predict(params, observed))
            return -(logs[jnp.arange(len(actions)), actions] * returns).mean()

        gradients = jax.grad(loss_fn)(params)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(6):
        observed, seen, actions = CHANCE.normal(size=4).astype(np.float32), [], []
        for _ in range(10):
            chances = np.asarray(policy(params, observed))
            COUNTS["eval"] += 1
            action = int(CHANCE.random() < chances[1])
            seen.append(observed)
            actions.append(action)
            observed = (0.9 * observed + (action - 0.5) * 0.2).astype(np.float32)
        returns = np.cumsum(np.ones(10, np.float32))[::-1].copy()
        params, state = update(params, state, np.stack(seen), np.array(actions), returns)
        COUNTS["train"] += 1
    see(params)


def checkpointed():
    """orbax saves the state every eighth step; training resumes from the second save."""
    import orbax.checkpoint as ocp

    params = init_mlp([16, 32, 4], jax.random.key(0))
    tx = optax.adam(1e-3)
    state = tx.init(params)

    @jax.jit
    def train_step(params, state, x, y):
        loss, gradients = jax.value_and_grad(lambda p: cross_entropy(predict(p, x), y))(params)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as saver:
        for number, (x, y) in enumerate(shuffled()):
            params, state, loss = train_step(params, state, x, y)
            COUNTS["train"] += 1
            see(loss)
            if number % 8 == 7:
                saver.save(Path(folder, str(number)), {"params": params, "state": state})
        saver.wait_until_finished()
    see(params)


def loader_and_prefetch():
    """torch's DataLoader with a collate function for numpy, batches put on the device two ahead."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    params = init_mlp([16, 32, 4], jax.random.key(0))

    @jax.jit
    def train_step(params, x, y):
        loss, gradients = jax.value_and_grad(lambda p: cross_entropy(predict(p, x), y))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    def collate(rows):
        return np.stack([x.numpy() for x, _ in rows]), np.array([int(y) for _, y in rows])

    loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=32, collate_fn=collate)

    def ahead(batches, count=2):
        waiting = []
        for batch in batches:
            waiting.append(jax.device_put(batch))
            if len(waiting) > count:
                yield waiting.pop(0)
        yield from waiting

    for _ in range(2):
        for x, y in ahead(loader):
            params, loss = train_step(params, x, y)
            COUNTS["train"] += 1
        see(loss)


def host_callback():
    """jax.pure_callback augments on the host, jax.debug.print writes the loss, in each step."""
    params = init_mlp([16, 32, 4], jax.random.key(0))

    def augment(x):
        return np.asarray(x) * np.float32(0.5)

    @jax.jit
    def train_step(params, x, y):
        x = jax.pure_callback(augment, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        loss, gradients = jax.value_and_grad(lambda p: cross_entropy(predict(p, x), y))(params)
        jax.debug.callback(see, loss, ordered=True)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    for x, y in shuffled():
        params = train_step(params, x, y)
        COUNTS["train"] += 1
    jax.block_until_ready(params)
    jax.effects_barrier()


def own_profiler():
    """The script itself profiles some steps."""
    params = init_mlp([16, 32, 4], jax.random.key(0))

    @jax.jit
    def train_step(params, x, y):
        loss, gradients = jax.value_and_grad(lambda p: cross_entropy(predict(p, x), y))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    with tempfile.TemporaryDirectory() as folder:
        for number, (x, y) in enumerate(shuffled()):
            if number == 5:
                jax.profiler.start_trace(folder)
            params, loss = train_step(params, x, y)
            COUNTS["train"] += 1
            see(loss)
            if number == 9:
                jax.profiler.stop_trace()
        assert list(Path(folder).rglob("*.xplane.pb"))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print(json.dumps({**COUNTS, "digest": DIGEST.hexdigest()}))  # noqa: T201 - the result
