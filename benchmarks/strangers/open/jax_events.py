"""Predict the next event of a user from log files; JAX, an attention pool, checkpoints in numpy's format."""

import datetime
import gzip
import json
import os
import pathlib
import random
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

REPAIRED = os.environ.get("REPAIRED") == "1"
KINDS, DIM, SESSION, BATCH, STEPS = 4000, 96, 24, 64, 320
LOGS = pathlib.Path("logs")


def write_logs(files=16, sessions=64):
    LOGS.mkdir(exist_ok=True)
    r = random.Random(5)
    for f in range(files):
        with gzip.open(LOGS / f"{f:03}.jsonl.gz", "wt", compresslevel=3) as out:
            for _ in range(sessions):
                events = [{"kind": r.randrange(KINDS), "at": datetime.datetime(2023, 5, 1 + n % 28, n).isoformat(),
                           "agent": "Mozilla/5.0 (X11; Linux x86_64)", "path": f"/shop/{r.random()}"} for n in range(SESSION)]
                out.write(json.dumps({"events": events}) + "\n")


def read_batch(path):
    with gzip.open(path, "rt") as lines:
        sessions = [json.loads(line)["events"] for line in lines]
    kinds = np.array([[e["kind"] for e in s] for s in sessions], np.int32)
    hours = np.array([[datetime.datetime.fromisoformat(e["at"]).hour for e in s] for s in sessions], np.float32)
    return kinds, hours / 24


def predict(params, kinds, hours):
    x = params["embed"][kinds] + hours[..., None] * params["hour"]
    weight = jax.nn.softmax(x @ params["query"], axis=1)
    pooled = (weight[..., None] * x).sum(1)
    return jax.nn.gelu(pooled @ params["hidden"]) @ params["out"]


def loss_fn(params, kinds, hours):
    logits = predict(params, kinds[:, :-1], hours[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, kinds[:, -1]).mean()


optimizer = optax.adam(1e-3)


@jax.jit
def step_fn(params, state, kinds, hours):
    loss, grads = jax.value_and_grad(loss_fn)(params, kinds, hours)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, loss


def main():
    write_logs()
    keys = jax.random.split(jax.random.PRNGKey(0), 5)
    shapes = {"embed": (KINDS, DIM), "hour": (DIM,), "query": (DIM,), "hidden": (DIM, 512), "out": (512, KINDS)}
    params = {name: jax.random.normal(key, shape) * 0.05 for key, (name, shape) in zip(keys, shapes.items())}
    state = optimizer.init(params)
    paths = sorted(LOGS.iterdir())
    parsed = [read_batch(path) for path in paths] if REPAIRED else None
    start = time.time()
    for step in range(STEPS):
        k = step % len(paths)
        kinds, hours = parsed[k] if parsed else read_batch(paths[k])
        params, state, loss = step_fn(params, state, kinds, hours)
        if step % (160 if REPAIRED else 10) == 0:
            np.savez_compressed(f"events-{step}.npz", **{name: np.asarray(value) for name, value in params.items()})
        if step % 50 == 0:
            print(f"step {step} loss {float(loss):.3f}")
    print(f"training took {time.time() - start:.2f} s")


main()
