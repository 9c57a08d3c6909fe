"""Columns, metrics and reports built from rows, for the report's tests."""

import json

import attrs
import numpy as np

from sm_profiler.diagnosis.profile.case import Case, Found
from sm_profiler.diagnosis.profile.causes import CAUSES
from sm_profiler.diagnosis.profile.verdict import Candidate, decide, rank_by_gain, worded
from sm_profiler.formats import event_names
from sm_profiler.formats.columns import Category, EventColumns, SystemColumns
from sm_profiler.formats.event_names import SAMPLES
from sm_profiler.metrics.attempts import processes_before
from sm_profiler.metrics.job_metrics import measure_job
from sm_profiler.report.build import MetricFolds, report_of

START_S = 1_700_000_000
JAX = ({"framework": "jax"},)


@attrs.frozen
class FakeWindow:
    start_us: int
    new_events: EventColumns
    new_system: SystemColumns


def events(rows):
    """Return EventColumns from rows of phase, name, start in s, duration in s, node, step and, optionally, arguments."""
    count = len(rows)
    args = [json.dumps(row[6]) if len(row) > 6 else "" for row in rows]
    phase, name, start, length, node, step = zip(*(row[:6] for row in rows), strict=True) if rows else ((),) * 6
    ints = np.full(count, -1, np.int64)
    small = np.full(count, -1, np.int32)
    given = [row[6].get("pid", -1) if isinstance(row[-1], dict) else -1 for row in rows]
    pids = np.asarray([pid if type(pid) is int and abs(pid) < 2**31 else -1 for pid in given], np.int64)
    return EventColumns(
        (np.asarray(start, float) + START_S) * 1e6, np.asarray(length, float) * 1e6, Category.of(name), Category.of(phase),
        Category.of(node), Category.of(["pythontimeline"] * count), np.asarray(step, np.int64), pids, ints, small, small,
        np.full(count, -1, np.int8), Category.of(args),
    )  # fmt: skip


def system(rows):
    """Return SystemColumns from rows of seconds, value, node, type, name, dimension."""
    seconds, value, node, kind, name, dimension = zip(*rows, strict=True) if rows else ((),) * 6
    return SystemColumns(
        np.asarray(seconds, float) + START_S, np.asarray(value, float), Category.of(node), Category.of(kind), Category.of(name),
        Category.of(dimension),
    )  # fmt: skip


def training(  # one argument a part, each with a default
    steps,
    *,
    wait=0.001,
    forward=0.003,
    backward=0.005,
    optimizer=0.001,
    outside=0.0002,
    node="algo-1-0",
    mode="TRAIN",
    at=1.0,
    every=None,
    stall=0.0,
    number=0,
):
    """Return a training loop as events; every `every` steps, `stall` seconds are added outside the phases."""
    rows, now = [], at
    for step in range(number, number + steps):
        if wait:
            rows.append(("DataLoaderWait", "DataLoaderWait", now, wait, node, step))
        begin = now = now + wait
        for phase, length in (("Forward", forward), ("Backward(post-forward)", backward), ("Optimizer", optimizer)):
            if length:
                rows.append((phase, phase, now, length, node, step))
            now += length
        rows.append((f"Step:ModeKeys.{mode}", f"Step:ModeKeys.{mode}", begin, now - begin, node, step))
        now += outside + (stall if every and step % every == 0 else 0.0)
    return rows


def gpu_samples(value, seconds, *, node="algo-1", name="gpu0", memory=50.0):
    rows = []
    for tick in range(int(seconds * 2)):
        rows.append((1 + tick / 2, value(tick) if callable(value) else value, node, "gpu", name, "GPUUtilization"))
        rows.append(
            (1 + tick / 2, memory(tick) if callable(memory) else memory, node, "gpu", name, "GPUMemoryUtilization")
        )
    return rows


def sampled(*stacks, node="algo-1-0", at=2.0, pid=-1):
    """Return an event from stacks: phase, long, seconds, line, and optionally file and function."""
    places = [(*stack, "train.py", "main")[3:6] if len(stack) == 4 else (stack[3], *stack[4:6]) for stack in stacks]
    frames = [[file, line, name] for line, file, name in places]
    args = {
        "pid": pid,
        "frames": frames,
        "lines": [f"source of line {line}" for _, line, _ in frames],
        "stacks": [
            [phase, int(long), seconds * 1e3, max(int(seconds * 15), 1), leaf[0] if leaf else "", [number]]
            for number, (phase, long, seconds, (*_, leaf)) in enumerate((*stack[:3], (stack[6:],)) for stack in stacks)
        ],
    }
    return (SAMPLES, "samples", at, 0.0, node, -1, args)


def in_step(works, *, part="forward", collections=None, steps=200):
    """Return steps of ranks that meet in the backward pass.

    Args:
        works: seconds of `part` by rank and step.
        part: "forward" or "wait".
        collections: seconds of garbage collection by rank and step, part of the work.
        steps: number of steps.
    """
    rows, now = [], 1.0
    for step in range(steps):
        longest = max(work[step] for work in works)
        for rank, work in enumerate(works):
            timing = {"wait": 0.001, "forward": 0.003} | {part: work[step]}
            node = f"algo-1-{rank}"
            rows += training(1, node=node, at=now, number=step, backward=0.005 + longest - work[step], **timing)
            if collections is not None and collections[rank][step]:
                rows.append(("GC", "GC", now + timing["wait"] + 0.0001, collections[rank][step], node, -1))
        now += 0.0062 + timing["wait"] + timing["forward"] + 0.005 + longest - works[-1][step] - 0.005
    return sorted(rows, key=lambda row: row[2])


def jitter(ranks, steps=200, mean=0.003, spread=0.1):
    random = np.random.default_rng(3)
    return np.abs(random.normal(mean, spread * mean, (ranks, steps)))


def compiled(steps, *, call=0.0001, read=0.0, every=20, outside=0.0):
    """Return a loop that calls a function a step and, every few steps, waits `read` seconds for its results."""
    rows, now = [], 1.0
    for step in range(steps):
        begin = now
        rows.append((event_names.COMPILED_STEP, "train_step", now, call, "algo-1-0", step))
        now += call
        if read and step % every == every - 1:
            rows.append((event_names.RESULTS, "copy to the host", now, read, "algo-1-0", step))
            now += read
        rows.append(("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", begin, now - begin, "algo-1-0", step))
        now += outside
    return rows


def metrics_of(  # one argument a part, each with a default
    event_rows=(),
    system_rows=(),
    *,
    memory=None,
    name="job",
    running=False,
    instance_type=None,
    window_s=60,
    metadata=(),
    description=None,
    facts=None,
):
    """Return metrics of rows, folded window by window as the engine does."""
    folds, all_events, all_system = MetricFolds(), events(list(event_rows)), system(list(system_rows))
    base, width = START_S * 1_000_000, window_s * 1_000_000
    ends = [float(all_events.start_us.max())] if len(all_events) else []
    ends += [float(all_system.timestamp.max()) * 1e6] if len(all_system) else []
    for start in range(base, int(max(ends, default=base)) + 1, width):
        chosen = (all_events.start_us >= start) & (all_events.start_us < start + width)
        rows = (all_system.timestamp * 1e6 >= start) & (all_system.timestamp * 1e6 < start + width)
        for fold in folds.all():
            fold.update(FakeWindow(start, all_events[chosen], all_system[rows]))
    return measure_job(
        folds.steps.result(),
        folds.system.result(),
        name=name,
        running=running,
        instance_type=instance_type,
        memory=memory,
        metadata=metadata,
        records=folds.records.result(),
        samples=folds.samples.result(processes_before(metadata)),
        description=description,
        facts=facts,
    )


def cause_found(kind, case):
    """Return what one cause finds in a case, as a finding; None if it finds nothing."""
    cause = next(cause for cause in CAUSES if cause.kind.value == kind)
    found = cause.find(case)
    if found is None:
        return None
    return Candidate(cause, found, worded(cause, found, case)).with_confidence(case, found.share)


def ranked(findings, case):
    """Return findings in the order of their gains, each with what the cause of its kind saves in the case."""
    candidates = []
    for finding in findings:
        cause = next(cause for cause in CAUSES if cause.kind is finding.kind)
        found = cause.find(case) or Found("", {}, finding.evidence, finding.share_of_time, of=finding.of)
        candidates.append(Candidate(cause, found, finding, foreign=True))
    return rank_by_gain(candidates, case)


def report_from(event_rows=(), system_rows=(), rules=None, **options):
    """Return a whole report from rows."""
    metrics = metrics_of(event_rows, system_rows, **options)
    rules = rules or {}
    return report_of(metrics, decide(Case(metrics, rules)), rules, source="/data/profiler-output")


def verdict_of(event_rows=(), system_rows=(), rules=None, **options):
    return report_from(event_rows, system_rows, rules, **options).verdict
