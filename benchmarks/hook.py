"""Measure the cost of the hook per training step: alternating pairs of short runs in one process, with and without it.

    python benchmarks/hook.py [--pairs 300] [--smdebug .envs/smdebug/bin/python]

The network is 8 x (Linear(64, 64), ReLU) and Linear(64, 10), batch 32, SGD, one thread.  Each pair is 10 steps without the
hook and 10 steps with it (order alternating); the table shows quartiles of the differences per step.
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
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 10
WARM_RUNS = 10  # installing or removing the hook resets the bytecode that the interpreter has specialised in torch


def network() -> tuple[Callable[..., float], Any, Any]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 10))
    data = torch.utils.data.TensorDataset(torch.randn(32 * STEPS, 64), torch.randint(0, 10, (32 * STEPS,)))
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, sampler=torch.utils.data.BatchSampler(range(32 * STEPS), 32, drop_last=False)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.nn.CrossEntropyLoss()

    def run(after: Callable[[], None] | None = None) -> tuple[float, float]:
        batches = iter(loader)
        start, cpu = time.perf_counter(), time.process_time()
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss(model(inputs), labels).backward()
            optimizer.step()
            if after:
                after()
        wall, used = time.perf_counter() - start, time.process_time() - cpu
        return wall / STEPS * 1e6, used / STEPS * 1e6

    return run, model, loss


def quartiles(values: list[float]) -> list[float]:
    return [round(value, 2) for value in statistics.quantiles(values, n=4)]


Run = Callable[[], tuple[float, float]]


def paired(without: Run, with_it: Run, pairs: int, warm: int = 20) -> dict[str, list[float]]:
    """Quartiles of the step's time, of the time added to it, and of the CPU time (all threads) that is added to it, in µs."""
    for _ in range(warm):
        without(), with_it()
    base, walls, cpus = [], [], []
    for number in range(pairs):
        first, second = (without, with_it) if number % 2 else (with_it, without)
        a, b = first(), second()
        off, on = (a, b) if number % 2 else (b, a)
        base.append(off[0])
        walls.append(on[0] - off[0])
        cpus.append(on[1] - off[1])
    return {"step": quartiles(base), "added": quartiles(walls), "added_cpu": quartiles(cpus)}


def measure_hook(pairs: int) -> dict[str, list[float]]:
    """Two networks of one kind, and one hook that is removed for the runs without it."""
    folder = tempfile.mkdtemp(prefix="sm-profiler-bench-")
    os.environ["SM_PROFILER_CONFIG"] = json.dumps({"ProfilingParameters": {"LocalPath": folder}})
    from sm_profiler.hook import entry

    run, _, _ = network()

    hook = entry.install()
    adapter = hook.session.adapter
    run()

    # Measures the steady state: models found, the global hook gone, the file open.
    def warm() -> tuple[float, float]:
        for _ in range(WARM_RUNS):
            run()
        return run()

    def on() -> tuple[float, float]:
        adapter.remove()  # two runs with it may be consecutive
        adapter.install()
        return warm()

    def off() -> tuple[float, float]:
        adapter.remove()
        return warm()

    result = paired(off, on, pairs)
    hook.close()
    entry.uninstall()
    return result


def measure_idle_profiler(pairs: int) -> dict[str, list[float]]:
    """torch.profiler waiting for a distant window: only its step() is called."""
    import torch

    run, _, _ = network()
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=10**9, warmup=1, active=1),
    )
    profiler.start()
    return paired(lambda: run(), lambda: run(after=profiler.step), pairs)  # noqa: PLW0108 - both with the same detour


def measure_off(times: int = 100_000) -> list[float]:
    """Quartiles of the time of the wheel's `.pth` line without SM_PROFILER_AUTO, its only cost then, in µs."""
    os.environ.pop("SM_PROFILER_AUTO", None)
    line = Path(__file__).parents[1].joinpath("packaging/sm_profiler_auto.pth").read_text().strip()
    return quartiles([seconds / times * 1e6 for seconds in timeit.repeat(line, number=times, repeat=9)])


def measure_writer(seconds: float = 15.0) -> float:
    """CPU time of the hook's thread as a share of the training's, at 100 steps a second; writing is most of it."""
    os.environ["SM_PROFILER_CONFIG"] = json.dumps({"ProfilingParameters": {"LocalPath": tempfile.mkdtemp()}})
    from sm_profiler.hook import entry

    run, _, _ = network()
    hook = entry.install()
    run()
    clock = time.pthread_getcpuclockid(hook.session.recorder._thread.ident)
    begun, used = time.perf_counter(), time.clock_gettime(clock)
    while time.perf_counter() < begun + seconds:
        turn = time.perf_counter()
        run(after=lambda: time.sleep(0.009))
        time.sleep(max(turn + 0.01 * STEPS - time.perf_counter(), 0))
    share = (time.clock_gettime(clock) - used) / (time.perf_counter() - begun)
    hook.close()
    entry.uninstall()
    return share


SAMPLED_RUNS = 150  # of a pair of measure_sampler: some seconds, with fifteen samples each


def measure_sampler(pairs: int) -> tuple[dict[str, list[float]], list[float]]:
    """The hook with its sampler and without, in pairs of a second each; CPU time of its thread, percent of the time."""
    os.environ["SM_PROFILER_CONFIG"] = json.dumps({"ProfilingParameters": {"LocalPath": tempfile.mkdtemp()}})
    from sm_profiler.hook import entry

    run, _, _ = network()
    hook = entry.install()
    sampler = hook.session.sampler
    run()
    shares = []

    def many() -> tuple[float, float]:
        walls, cpus = zip(*(run() for _ in range(SAMPLED_RUNS)), strict=True)
        return statistics.fmean(walls), statistics.fmean(cpus)

    def on() -> tuple[float, float]:
        sampler.forked()  # starts over
        sampler._saved = 0.0  # as in a job that has run for a while, without the allowance for its first long steps
        sampler.begin()
        begun = time.perf_counter()
        measured = many()
        shares.append(100 * sampler.cpu_seconds / (time.perf_counter() - begun))
        return measured

    def off() -> tuple[float, float]:
        sampler.close()
        return many()

    off()
    result = paired(off, on, pairs, warm=2)
    hook.close()
    entry.uninstall()
    return result, quartiles(shares)


def measure_in_smdebug() -> dict[str, list[float]]:
    """smdebug's hook with its windows over; runs in its own environment, also in pairs."""
    os.environ["SMPROFILER_CONFIG_PATH"] = str(Path(tempfile.mkdtemp(), "profilerconfig.json"))
    folder = tempfile.mkdtemp(prefix="smdebug-bench-")
    config = {
        "ProfilingIntervalInMilliseconds": 500,
        "ProfilingParameters": {
            "ProfilerEnabled": "true",
            "LocalPath": folder,
            "DetailedProfilingConfig": '{"StartStep": 0, "NumSteps": 1}',
        },
    }
    Path(os.environ["SMPROFILER_CONFIG_PATH"]).write_text(json.dumps(config))
    import smdebug.pytorch as smd

    plain, _, _ = network()
    hooked, model, loss = network()
    hook = smd.Hook(out_dir=folder + "/tensors", save_config=smd.SaveConfig(save_interval=10**9))
    hook.register_module(model)
    hook.register_loss(loss)
    return paired(plain, hooked, 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--smdebug", help="a Python that has smdebug 1.0.34")
    parser.add_argument("--inside-smdebug", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside_smdebug:
        print(json.dumps(measure_in_smdebug()))
        return
    rows = {
        "sm-profiler, always on": measure_hook(options.pairs),
        "torch.profiler, idle": measure_idle_profiler(options.pairs),
    }
    if options.smdebug:
        out = subprocess.run(
            [options.smdebug, __file__, "--inside-smdebug"], capture_output=True, text=True, check=False
        )
        line = next((line for line in reversed(out.stdout.splitlines()) if line.startswith("{")), None)
        if line:
            rows["smdebug 1.0.34, windows over"] = json.loads(line)
        else:
            print(out.stderr[-500:], file=sys.stderr)
    print("| what | step without, µs | added a step, µs | added CPU time a step (all threads), µs |\n|---|---|---|---|")
    for name, row in rows.items():
        print(f"| {name} | {row['step']} | {row['added']} | {row['added_cpu']} |")
    print(f"the hook's thread at 100 steps a second: {measure_writer():.2%} of the training's time")
    row, shares = measure_sampler(max(options.pairs // 8, 10))
    print(
        f"the sampler: {row['added']} µs added to a step of {row['step']} µs; CPU time of its thread: {shares} % of the time"
    )
    print(f"off: nothing is installed; the `.pth` line at the interpreter's start takes {measure_off()} µs")
    print(f"load: {os.getloadavg()[0]:.1f} over the last minute, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
