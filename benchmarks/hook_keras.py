"""Measure the cost of the hook per step of Keras's fit: two processes, with and without it, that take turns.

    .envs/frameworks/bin/python benchmarks/hook_keras.py [--pairs 300] [--backend tensorflow|jax|torch|all]

The network is 4 x Dense(256), batch 64, SGD, a step of about 1.5 ms; each turn is one epoch of 50 steps.  It prints the
quartiles of the differences per step, of the time and of the processor time of all threads, which other load changes less.
300 pairs take about a minute and a half on a quiet machine.  Two processes, since a hook that is installed later would not be in the graphs that
were traced before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

BACKENDS = ("tensorflow", "jax", "torch")
STEPS = 50
WARM = 5


def train() -> None:
    """Run one epoch for each line of standard input, and print the microseconds of a step, and of processor time in it."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.random((64 * STEPS, 256), np.float32), rng.integers(0, 10, 64 * STEPS)
    layers = [keras.layers.Dense(256, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.layers.Input((256,)), *layers, keras.layers.Dense(10, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    data = {"x": x, "y": y, "batch_size": 64, "shuffle": False, "verbose": 0}
    for _ in range(WARM):
        model.fit(**data)
    print("ready", flush=True)
    for _ in sys.stdin:
        start, busy = time.perf_counter(), time.process_time()
        model.fit(**data)
        taken = time.perf_counter() - start, time.process_time() - busy
        print(*(elapsed / STEPS * 1e6 for elapsed in taken), flush=True)


def start(backend: str, folder: str | None) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SM_PROFILER")}
    environment |= {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "SM_CONTAINER_ROOT": "/"}
    if folder is not None:
        parameters = {"ProfilingParameters": {"LocalPath": folder}}
        environment |= {"SM_PROFILER_AUTO": "1", "SM_PROFILER_CONFIG": json.dumps(parameters)}
    child = subprocess.Popen(
        [sys.executable, __file__, "--train"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert child.stdout is not None
    while "ready" not in (line := child.stdout.readline()):
        assert line, "the training ended"
    return child


def turn(child: subprocess.Popen[str]) -> list[float]:
    assert child.stdin is not None
    assert child.stdout is not None
    print("go", file=child.stdin, flush=True)
    return [float(word) for word in child.stdout.readline().split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--backend", default="all", choices=(*BACKENDS, "all"))
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train()
        return
    for backend in BACKENDS if options.backend == "all" else (options.backend,):
        measure(backend, options.pairs)


def measure(backend: str, pairs: int) -> None:
    """Print what the hook adds to the steps of one backend."""
    with tempfile.TemporaryDirectory() as folder:
        plain, hooked = start(backend, None), start(backend, folder)
        differences, steps = [], []
        for pair in range(pairs):
            order = (plain, hooked) if pair % 2 else (hooked, plain)
            taken = {id(child): turn(child) for child in order}
            steps.append(taken[id(plain)])
            differences.append([on - off for on, off in zip(taken[id(hooked)], taken[id(plain)], strict=True)])
        for child in (plain, hooked):
            child.communicate()
    print(f"Keras on {backend}, {pairs} pairs of {STEPS} steps:")
    columns = zip(("time", "processor time"), zip(*steps, strict=True), zip(*differences, strict=True), strict=True)
    for name, without, added in columns:
        step, (low, middle, high) = statistics.median(without), statistics.quantiles(added, n=4)
        print(f"  {name}: a step takes {step:,.0f} µs; the hook adds {middle:.1f} µs ", end="")
        print(f"({middle / step:.1%}; quartiles {low:.1f} to {high:.1f})")


if __name__ == "__main__":
    main()
