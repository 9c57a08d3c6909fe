"""Train with JAX in many kinds of loops, and print what the script itself counted: run by test_frameworks_jax.py.

    python jax_loops.py off|on|raising FOLDER [SCENARIO …]

Prints one JSON object per scenario: the numbers of steps and batches, a digest of all losses and parameters, and failures.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sm_profiler.hook import overhead

MODE = sys.argv[1]
OPTIMIZER = optax.adam(1e-2)
SHAPES = {"first": (8, 16), "second": (16, 4)}


class Truth:
    def __init__(self) -> None:
        self.counts = {"train": 0, "eval": 0, "wait": 0}
        self.digest = hashlib.sha256()

    def add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.counts[name] += count

    def see(self, *trees) -> None:
        for leaf in jax.tree.leaves(trees):
            self.digest.update(np.asarray(leaf).tobytes())


def init(key):
    keys = jax.random.split(key)
    return {name: jax.random.normal(one, shape) * 0.1 for one, (name, shape) in zip(keys, SHAPES.items(), strict=True)}


def apply(params, x):
    return jnp.tanh(x @ params["first"]) @ params["second"]


def loss_of(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(apply(params, x), y).mean()


def update(params, state, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


def batches(count, size=8):
    chance = np.random.default_rng(count)
    for _ in range(count):
        yield chance.normal(size=(size, 8)).astype(np.float32), chance.integers(0, 4, size)


def start():
    params = jax.jit(init)(jax.random.key(0))
    return params, jax.jit(OPTIMIZER.init)(params)


def with_evaluation(truth):
    """A compiled step and a compiled evaluation, fed by generators."""
    params, state = start()
    train_step = jax.jit(update)

    @jax.jit
    def accuracy(params, x, y):
        return (jnp.argmax(apply(params, x), -1) == y).mean()

    for _ in range(2):
        for x, y in batches(6):
            params, state, loss = train_step(params, state, x, y)
            truth.add(train=1)
            truth.see(loss)
        for x, y in batches(3):
            truth.see(accuracy(params, x, y))
            truth.add(eval=1)
    truth.see(params, state)


def unlogged(truth):
    """Nothing waits for a result until the end; arguments are donated."""
    params, state = start()
    train_step = functools.partial(jax.jit, donate_argnums=(0, 1))(update)
    for x, y in batches(12):
        params, state, _ = train_step(params, state, x, y)
        truth.add(train=1)
    truth.see(jax.block_until_ready((params, state)))


def gradients_only(truth):
    """Only the gradients are compiled; optax updates one operation at a time."""
    params, state = start()
    gradients_of = jax.jit(jax.value_and_grad(loss_of))
    for x, y in batches(6):
        loss, gradients = gradients_of(params, x, y)
        updates, state = OPTIMIZER.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        truth.add(train=1)
        truth.see(loss.item())
    truth.see(params)


def two_functions(truth):
    params, state = start()
    gradients_of = jax.jit(jax.grad(loss_of))

    @jax.jit
    def apply_gradients(params, state, gradients):
        updates, state = OPTIMIZER.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for x, y in batches(8):
        params, state = apply_gradients(params, state, gradients_of(params, x, y))
        truth.add(train=1)
    truth.see(params)


def annotated(truth):
    params, state = start()
    train_step, source = jax.jit(update), batches(8)
    for number in range(8):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            params, state, loss = train_step(params, state, *next(source))
            truth.see(float(loss))
        truth.add(train=1)
    truth.see(params)


def marked(truth):
    from sm_profiler.hook import get_hook

    hook = get_hook(create=False)
    params, state = start()
    train_step = jax.jit(update)
    for x, y in batches(5):
        if hook is None:
            params, state, loss = train_step(params, state, x, y)
        else:
            with hook.step():
                params, state, loss = train_step(params, state, x, y)
        truth.add(train=1)
        truth.see(loss)


def torch_loader(truth):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(48, 8), torch.randint(0, 4, (48,)))
    params, state = start()
    train_step = jax.jit(update)
    eval_step = jax.jit(loss_of)
    for _ in range(2):
        for x, y in DataLoader(rows, batch_size=8, shuffle=True):
            params, state, loss = train_step(params, state, x.numpy(), y.numpy())
            truth.add(train=1, wait=1)
            truth.see(loss)
        for x, y in DataLoader(rows, batch_size=16):
            truth.see(eval_step(params, x.numpy(), y.numpy()))
            truth.add(eval=1, wait=1)


def changing_shapes(truth):
    """Each batch has a length of its own; a number is static."""
    params, state = start()

    @functools.partial(jax.jit, static_argnums=(4,))
    def train_step(params, state, x, y, scale):
        params, state, loss = update(params, state, x, y)
        return params, state, loss * scale

    for size in range(3, 9):
        for x, y in batches(1, size):
            params, state, loss = train_step(params, state, x, y, size % 2 + 1.0)
            truth.add(train=1)
            truth.see(loss)


def flax_linen(truth):
    from flax import linen
    from flax.training.train_state import TrainState

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(4)(linen.relu(linen.Dense(16)(x)))

    model = Net()
    params = model.init(jax.random.key(1), jnp.ones((1, 8)))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=OPTIMIZER)

    @jax.jit
    def train_step(state, x, y):
        def loss_fn(params):
            return optax.softmax_cross_entropy_with_integer_labels(state.apply_fn(params, x), y).mean()

        loss, gradients = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=gradients), loss

    for x, y in batches(8):
        state, loss = train_step(state, x, y)
        truth.add(train=1)
        truth.see(loss)
    truth.see(state.params)


def flax_nnx(truth):
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first, self.second = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 4, rngs=rngs)

        def __call__(self, x):
            return self.second(nnx.relu(self.first(x)))

    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)

    @nnx.jit
    def train_step(model, optimizer, x, y):
        loss, gradients = nnx.value_and_grad(
            lambda model: optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()
        )(model)
        optimizer.update(model, gradients)
        return loss

    for x, y in batches(8):
        truth.see(train_step(model, optimizer, x, y))
        truth.add(train=1)
    truth.see(nnx.state(model))


def errors(truth):
    """A call fails, methods are compiled, attributes of compiled functions are used."""
    params, state = start()

    class Trainer:
        @functools.partial(jax.jit, static_argnums=0)
        def step(self, params, state, x, y):
            """Train."""
            return update(params, state, x, y)

    trainer = Trainer()
    assert Trainer.step.__doc__ == "Train."
    assert isinstance(Trainer.step, jax.stages.Wrapped)
    x, y = next(batches(1))
    assert "tanh" in jax.jit(loss_of).lower(params, x, y).as_text()
    assert jax.jit(loss_of).eval_shape(params, x, y).shape == ()
    for x, y in batches(6):
        try:
            trainer.step(params, state, x[:, :3], y)
        except TypeError as error:
            truth.see(np.frombuffer(str(error)[:40].encode(), np.uint8))
        params, state, loss = trainer.step(params, state, x, y)
        truth.add(train=1)
        truth.see(loss)
    outer = jax.jit(lambda *arguments: jax.jit(loss_of)(*arguments) * 2)
    truth.see(outer(params, x, y), jax.grad(jax.jit(loss_of))(params, x, y), jax.vmap(jax.jit(jnp.sin))(x))


def nothing_compiled(truth):
    """Gradients in the loop, of a function that is defined anew in each turn, and parameters updated by hand."""
    params, _ = start()
    for x, y in batches(5):
        loss, gradients = jax.value_and_grad(lambda params, x=x, y=y: loss_of(params, x, y))(params)
        params = jax.tree.map(lambda one, gradient: one - 0.1 * gradient, params, gradients)
        truth.add(train=1)
        truth.see(loss)
    truth.see(params)


def two_networks(truth):
    """Two states of one factory train in turn; their results are read at times."""
    first, second = start(), start()

    def made(loss):
        @jax.jit
        def step(params, state, *others):
            gradients = jax.grad(loss)(params, *others)
            updates, state = OPTIMIZER.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        return step

    train_first = made(lambda params, other, x: (apply(params, x) * apply(other, x)).mean())
    train_second = made(lambda params, other, x: (apply(params, x) - apply(other, x)).mean())
    score = jax.jit(apply)
    for number, (x, _) in enumerate(batches(9)):
        first = train_first(*first, second[0], x)
        second = train_second(*second, first[0], x)
        truth.add(train=1)
        if number % 3 == 2:
            truth.see(score(first[0], x))
            truth.add(eval=1)
    truth.see(first, second)


def rollouts(truth):
    """Many calls that choose actions, then one that trains."""
    params, state = start()

    @jax.jit
    def act(params, key, x):
        key, used = jax.random.split(key)
        return key, jax.random.categorical(used, apply(params, x))

    train_step, key = jax.jit(functools.partial(update)), jax.random.key(3)  # not traced before
    for x, y in batches(4):
        for _ in range(6):
            key, action = act(params, key, x)
            truth.see(action)
            truth.add(eval=1)
        params, state, loss = train_step(params, state, x, y)
        truth.see(loss)
        truth.add(train=1)


def ahead_of_time(truth):
    """A step that is compiled before the loop, by a method; an epoch in lax.scan."""
    params, state = start()
    x, y = next(batches(1))
    step = jax.jit(update, donate_argnums=(0, 1)).lower(params, state, x, y).compile()
    for x, y in batches(6):
        params, state, loss = step(params, state, x, y)
        truth.add(train=1)
        truth.see(loss)

    @jax.jit
    def epoch(params, state, xs, ys):
        def body(carry, batch):
            params, state, loss = update(*carry, *batch)
            return (params, state), loss

        return jax.lax.scan(body, (params, state), (xs, ys))

    xs, ys = (np.stack(one) for one in zip(*batches(4), strict=True))
    for _ in range(3):
        (params, state), losses = epoch(params, state, xs, ys)
        truth.add(train=1)
        truth.see(losses)
    truth.see(params)


def several_devices(truth):
    """pmap, on as many devices as there are."""
    count = jax.local_device_count()
    params, state = jax.tree.map(lambda leaf: jnp.stack([leaf] * count), start())
    step = jax.pmap(update, axis_name="devices", donate_argnums=(0, 1))
    for x, y in batches(5, 4 * count):
        params, state, loss = step(params, state, x.reshape(count, 4, -1), y.reshape(count, 4))
        truth.add(train=1)
        truth.see(loss)


def resting(truth):
    """Each step is two calls and two waits; the batch grows, an evaluation follows, and then more steps."""
    from sm_profiler.hook import get_hook

    params, state = start()
    loss_and_gradients, evaluate = jax.jit(jax.value_and_grad(loss_of)), jax.jit(loss_of)

    @jax.jit
    def apply_gradients(params, state, gradients):
        updates, state = OPTIMIZER.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    hook = get_hook(create=False)
    if hook is not None:
        hook.session.tracker.every = hook.session.controller._every_for_time = 16
    for number, size in enumerate([8] * 50 + [12] * 30):
        x, y = next(batches(1, size))
        loss, gradients = loss_and_gradients(params, x, y)
        truth.see(loss.item())
        params, state = apply_gradients(params, state, gradients)
        jax.block_until_ready(params)
        truth.add(train=1)
        if number == 60:
            for x, y in batches(3, size):
                truth.see(evaluate(params, x, y).item())
                truth.add(eval=1)
    truth.see(params)


SCENARIOS = [
    with_evaluation, unlogged, gradients_only, two_functions, annotated, marked, torch_loader, changing_shapes, flax_linen,
    flax_nnx, errors, nothing_compiled, two_networks, rollouts, ahead_of_time, several_devices, resting,
]  # fmt: skip


def run(scenario, folder: Path) -> dict:
    truth = Truth()
    hook = None
    if MODE != "off":
        parameters = {
            "LocalPath": str(folder / scenario.__name__),
            "DetailedProfilingConfig": '{"StartStep": 2, "NumSteps": 3, }',
            "PythonProfilingConfig": '{"StartStep": 5, "NumSteps": 1, "ProfilerName": "cprofile", "cProfileTimer": "total_time", }',
        }
        os.environ["SM_PROFILER_CONFIG"] = json.dumps({"ProfilingParameters": parameters})
        from sm_profiler.hook import entry

        hook = entry.install()
    try:
        scenario(truth)
    finally:
        if hook is not None:
            entry.uninstall()
    report = {"scenario": scenario.__name__, **truth.counts, "digest": truth.digest.hexdigest()}
    if hook is None:
        return report
    session = hook.session
    return report | {"failures": session.guard.failures, "notes": session.notes, "rested": session.tracker.rested}


def break_everything() -> None:
    """Make the hook raise at every call."""
    from sm_profiler.hook import detailed, host_callbacks, recorder, steps, windows
    from sm_profiler.hook.jax import adapter, calls, compilations, loop

    def broken(*_args, **_kwargs):
        raise RuntimeError("the hook is broken")

    for name in ("fetch_begins", "fetch_ends", "begin_step", "end_step", "begins_call", "call_ended", "claim"):
        setattr(steps.StepTracker, name, broken)
    for owner in (recorder.Recorder, windows.Window, loop.Loop, compilations.Compilations, adapter.JaxProfiler,
                  detailed.DetailedWindow, calls.OneByOne, host_callbacks.HostCallbacks):  # fmt: skip
        for name in [
            name
            for name in vars(owner)
            if callable(getattr(owner, name)) and not name.startswith("__") and name not in ("reset", "wrap")
        ]:
            setattr(owner, name, broken)


if __name__ == "__main__":
    overhead.OVER = sys.maxsize  # on a busy machine, phases would become sparse, and could not be counted
    if MODE == "raising":
        break_everything()
    for scenario in SCENARIOS:
        if not sys.argv[3:] or scenario.__name__ in sys.argv[3:]:
            sys.stdout.write(json.dumps(run(scenario, Path(sys.argv[2]))) + "\n")
            sys.stdout.flush()
