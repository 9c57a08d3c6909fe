"""Speed of the rules: all of them over 1.66 M system rows and 5.5 M events, from columns.

    python benchmarks/rules.py [--scale 1.0] [--hours 24] [--only folds|hours|apis]

Columns are generated in memory (2 nodes, 16 GPUs, one hour, 10 samples a second and node), minute by minute, as a source
delivers them; generating them is not timed.  `--only hours` measures the cost of a window over a day's job; `--only apis`
compares the two APIs of a rule: columns, and lists of event objects as a rule of the old library gets them.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from sm_profiler.folding import WindowCutter
from sm_profiler.formats.columns import Category, EventColumns, SystemColumns
from sm_profiler.formats.event_objects import system_events, trace_events
from sm_profiler.rules import CPUBottleneck, EvaluationWindow, ProfilerReport, StepOutlier
from sm_profiler.rules.base import BuiltinRule

START_S = 1_700_000_040
NODES, GPUS, CORES, RANKS = 2, 8, 5, 16
RESULTS_EVERY = 5  # minutes between two requests for all results of a long job
SAMPLES = 494  # a node and minute
PHASES = (
    "Step:ModeKeys.TRAIN",
    "Forward",
    "Backward(post-forward)",
    "cpu_functions",
    "gpu_functions-dev:0",
    "DataLoaderIter",
    "Forward-SubModuleInternal",
)
NAMES = (
    "Step:ModeKeys.TRAIN",
    "ResNet",
    "aten::conv2d",
    "aten::copy_",
    "layer1",
    "_MultiProcessingDataLoaderIter::GetNext",
    "aten::item",
)


class Batch:
    """A minute of a job."""

    def __init__(self, minute: int, samples: int, steps: int, random: np.random.Generator) -> None:
        self.minute_us = (START_S + 60 * minute) * 1_000_000
        self.system = system_rows(START_S + 60 * minute, samples, random)
        self.events = event_rows(self.minute_us, steps, random)


def system_rows(start_s: int, samples: int, random: np.random.Generator) -> SystemColumns:
    """Return the rows of all nodes, one after another, like the files of a minute."""
    dimensions = ("CPUUtilization", "I/OWaitPercentage", "GPUUtilization", "GPUMemoryUtilization", "", "Algorithm")
    types = ("cpu", "gpu", "memory", "network")
    names = (
        *(f"cpu{core}" for core in range(CORES)),
        *(f"gpu{gpu}" for gpu in range(GPUS)),
        "MemoryUsedPercent",
        "ReceiveBytesPerSecond",
    )
    per_sample = [(0, index % 2, index // 2) for index in range(2 * CORES)]
    per_sample += [(1, 2 + index % 2, CORES + index // 2) for index in range(2 * GPUS)]
    per_sample += [(2, 4, CORES + GPUS), (3, 5, CORES + GPUS + 1)]
    columns = np.asarray(per_sample)
    offset = np.asarray([0.0, 0.0021, 0.0001, 0.0045])[columns[:, 0]]
    ticks = start_s + np.arange(samples) * (60 / samples) + 0.0004
    rows = samples * len(per_sample)
    kind, dimension, name = (np.tile(columns[:, index], NODES * samples).astype(np.int32) for index in range(3))
    value = np.round(random.uniform(0, 100, NODES * rows), 2)
    gpu = dimension == 2
    value[gpu] = np.floor(random.choice([4.0, 90.0], gpu.sum()) + random.uniform(0, 8, gpu.sum()))
    times = np.tile((ticks[:, None] + offset[None, :]).ravel(), NODES)
    nodes = np.repeat(np.arange(NODES, dtype=np.int32), rows)
    node_names = tuple(f"algo-{number + 1}" for number in range(NODES))
    texts = (Category(nodes, node_names), Category(kind, types), Category(name, names), Category(dimension, dimensions))
    return SystemColumns(times, value, *texts)


def event_rows(start_us: int, count: int, random: np.random.Generator) -> EventColumns:
    """Return the events of all processes."""
    start = np.sort(np.round(start_us + random.uniform(0, 59e6, count)))
    phase = random.choice(len(PHASES), count, p=[0.05, 0.1, 0.1, 0.2, 0.2, 0.05, 0.3]).astype(np.int32)
    duration = np.round(random.lognormal(10, 0.5, count))
    rank = random.integers(0, RANKS, count).astype(np.int32)
    whole, small = np.full(count, -1, np.int64), np.full(count, -1, np.int32)
    processes = tuple(f"algo-{1 + rank // 8}-{rank}" for rank in range(RANKS))
    step = (start // 100_000).astype(np.int64) % 100_000
    kinds, nothing = (
        Category(np.zeros(count, np.int32), ("pythontimeline",)),
        Category(np.zeros(count, np.int32), ("",)),
    )
    workers = np.where(phase == 5, 4, -1).astype(np.int32)
    return EventColumns(
        start, duration, Category(phase, NAMES), Category(phase, PHASES), Category(rank, processes), kinds, step,
        rank.astype(np.int64), whole, small, workers, small.astype(np.int8), nothing,
    )  # fmt: skip


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def folds(minutes: int, per_minute: int) -> None:
    """Run all rules over one hour of batches."""
    random = np.random.default_rng(0)
    made = [Batch(minute, SAMPLES, per_minute, random) for minute in range(minutes)]
    rows, events = sum(len(batch.system) for batch in made), sum(len(batch.events) for batch in made)
    print(
        "| results | seconds | of a processor | MB besides the columns | the slowest rules, seconds |\n|---|---|---|---|---|"
    )
    for compat in (None, "service"):
        report, cutter = ProfilerReport(compat=compat), WindowCutter()
        times: dict[str, float] = {}
        before = peak_mb()
        begin, begin_cpu = time.perf_counter(), time.process_time()
        for batch in made:
            cutter.add(batch)
            for window in cutter.ready():
                timed(report, window, times)
        for window in cutter.rest():
            timed(report, window, times)
        report.results()
        took, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        slowest = ", ".join(
            f"{name} {spent:.2f}" for name, spent in sorted(times.items(), key=lambda each: -each[1])[:4]
        )
        print(f"| {compat or 'default'} | {took:.2f} | {cpu:.2f} | {peak_mb() - before:.0f} | {slowest} |")
        assert not report.broken, report.broken
    print(f"\nAll rules over {rows:,} system rows and {events:,} events, from columns.")


def timed(report: ProfilerReport, window: EvaluationWindow, times: dict[str, float]) -> None:
    for name, rule in report.rules.items():
        begin = time.perf_counter()
        rule.update(window)
        times[name] = times.get(name, 0.0) + time.perf_counter() - begin


def hours(length: int) -> None:
    """Measure the cost of a window in the first and last hours of a long job, and of all results after it."""
    random = np.random.default_rng(0)
    report = ProfilerReport()
    costs, asking, before = [], [], 0.0
    for minute in range(length * 60):
        batch = Batch(minute, 120, 3000, random)
        window = EvaluationWindow(batch.minute_us, batch.minute_us + 60_000_000, batch.system, batch.events)
        begin = time.process_time()
        report.update(window)
        costs.append(time.process_time() - begin)
        if minute % RESULTS_EVERY == 0:
            report.results()
            asking.append(time.process_time() - begin - costs[-1])
        if minute == 59:
            before = peak_mb()
    print("| hour | ms a window | ms to ask for all results after it |\n|---|---|---|")
    for hour in sorted({0, 1, length // 2, length - 1} & set(range(length))):
        window_ms = 1000 * np.median(costs[60 * hour : 60 * hour + 60])
        results_ms = 1000 * np.median(asking[60 // RESULTS_EVERY * hour : 60 // RESULTS_EVERY * (hour + 1)])
        print(f"| {hour + 1} | {window_ms:.1f} | {results_ms:.1f} |")
    print(
        f"\nMedians of an hour's windows. Memory after the first hour: {before:.0f} MB; at the end: {peak_mb():.0f} MB."
    )


def apis(per_minute: int) -> None:
    """Run CPUBottleneck and StepOutlier over five minutes of a job: columns and the event API."""
    random = np.random.default_rng(0)
    made = [Batch(minute, SAMPLES, per_minute, random) for minute in range(5)]

    def took(rule: BuiltinRule, run: Callable[[Batch], object]) -> float:
        begin = time.process_time()
        for batch in made:
            run(batch)
        rule.result()
        return 1000 * (time.process_time() - begin) / len(made)

    print("| rule | columns, ms a minute of the job | event objects | times as long |\n|---|---|---|---|")
    for kind in (CPUBottleneck, StepOutlier):
        pairs = []
        for _ in range(3):  # pairs, so that the machine's load is the same for both
            folds, by_event = kind(), kind()
            columns_ms = took(
                folds,
                lambda each, folds=folds: folds.update(
                    EvaluationWindow(each.minute_us, each.minute_us + 60_000_000, each.system, each.events)
                ),
            )
            objects_ms = took(
                by_event,
                lambda each, by_event=by_event: by_event.invoke_for_timerange(
                    each.minute_us,
                    each.minute_us + 60_000_000,
                    system_events(each.system),
                    trace_events(each.events),
                ),
            )
            pairs.append((objects_ms / columns_ms, columns_ms, objects_ms))
        ratio, columns_ms, objects_ms = sorted(pairs)[1]
        print(f"| {kind.name()} | {columns_ms:.1f} | {objects_ms:.0f} | {ratio:.0f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the hour")
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--only", choices=["folds", "hours", "apis"])
    options = parser.parse_args()
    if options.only is None:  # each in its own process, for its own peak memory
        for number, part in enumerate(("folds", "hours", "apis")):
            print("\n" if number else "", end="", flush=True)
            subprocess.run([sys.executable, __file__, "--only", part, *sys.argv[1:]], check=True)
    elif options.only == "folds":
        folds(max(1, round(60 * options.scale)), 91_700)
    elif options.only == "hours":
        hours(options.hours)
    else:
        apis(91_700)
