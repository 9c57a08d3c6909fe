"""Cost of the hook for each step of a loop in JAX: CPU time of the training thread with the hook and without, in turn.

.envs/frameworks/bin/python benchmarks/jax_steps.py [--pairs 100] [--steps 200]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp

from sm_profiler.hook import entry


def main() -> None:
    """Time pairs of short runs; print the quartiles of their differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()

    def update(weights, x):
        return weights - 0.1 * jax.grad(lambda weights: (jnp.tanh(x @ weights) ** 2).mean())(weights)

    plain = jax.jit(update)
    x, start = jnp.ones((32, 64)), jnp.ones((64, 64))

    def run(step) -> float:
        weights = start
        began = time.thread_time_ns()
        for _ in range(arguments.steps):
            weights = step(weights, x)
            weights.block_until_ready()
        return (time.thread_time_ns() - began) / arguments.steps / 1000

    with tempfile.TemporaryDirectory() as folder:
        os.environ["SM_PROFILER_CONFIG"] = json.dumps({"ProfilingParameters": {"LocalPath": folder}})
        without = [run(plain) for _ in range(3)]
        differences = []
        entry.install()
        profiled = jax.jit(update)
        patched = type(x).block_until_ready
        run(profiled)
        for _ in range(arguments.pairs):
            on = run(profiled)
            session = entry.get_hook(create=False).session
            session.quiet = True  # its wrappers pass everything on at once
            off = run(plain)
            session.quiet = False
            differences.append(on - off)
        assert type(x).block_until_ready is patched
        entry.uninstall()
    low, middle, high = statistics.quantiles(differences, n=4)
    print(f"a step takes {min(without):.0f} µs; the hook adds {middle:.1f} µs ({low:.1f} to {high:.1f})")


if __name__ == "__main__":
    main()
