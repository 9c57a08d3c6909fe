"""Synthetic jobs and columns for the tests of the rules."""

import json
import math
from pathlib import Path

import attrs
import numpy as np

from sm_profiler.formats.columns import Category, EventColumns, SystemColumns
from sm_profiler.source import open_source
from tests.support import jobs

REPO = Path(__file__).parents[2]
DATA = REPO / "tests/data/rules"
START_US = 1_700_000_040_000_000  # a whole minute


def make_job(folder: Path, *arguments: object) -> Path:
    """Write a job; return its profiler output."""
    return jobs.make_job(folder / "profiler-output", *arguments)


def read(folder):
    return open_source(folder, cache=False, progress=False)


@attrs.define
class MemoryBatch:
    system: SystemColumns
    events: EventColumns
    minute_us: int | None


@attrs.define
class MemorySource:
    """A source of given batches; each refresh finds one of `later`."""

    batches_now: list
    finished: bool = True
    later: list = attrs.field(factory=list)
    uri: str = "memory:"

    @property
    def first_timestamp_us(self):
        return None

    def refresh(self):
        if not self.later:
            self.finished = True
            return 0
        self.batches_now = [self.later.pop(0)]
        return 1

    def batches(self, *, unsettled=False):  # none of its files is damaged
        found, self.batches_now = self.batches_now, []
        return iter(found)


def differences(one, other, path=""):
    """List the differences of two report objects in types, order of keys and values; floats within 1e-9."""
    if type(one) is not type(other):
        return [f"{path}: {one!r:.60} is no {type(other).__name__}"]
    if isinstance(one, dict):
        found = [] if list(one) == list(other) else [f"{path}: keys {list(one)} / {list(other)}"[:300]]
        return found + [
            each for key in one if key in other for each in differences(one[key], other[key], f"{path}/{key}")
        ]
    if isinstance(one, list):
        if len(one) != len(other):
            return [f"{path}: {len(one)} entries / {len(other)}"]
        return [
            each
            for index, pair in enumerate(zip(one, other, strict=True))
            for each in differences(*pair, f"{path}[{index}]")
        ]
    if isinstance(one, float):
        return [] if math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9) else [f"{path}: {one} / {other}"]
    return [] if one == other else [f"{path}: {one!r} / {other!r}"]


def as_json(results):
    return json.loads(json.dumps(results, allow_nan=False))


def system(rows):
    """Return columns of (seconds from the start, type, name, dimension, value[, node])."""
    rows = [row if len(row) == 6 else (*row, "algo-1") for row in rows]
    if not rows:
        return SystemColumns.empty()
    times, types, names, dimensions, values, nodes = zip(*rows, strict=True)
    texts = (Category.of(nodes), Category.of(types), Category.of(names), Category.of(dimensions))
    return SystemColumns(START_US / 1e6 + np.asarray(times, float), np.asarray(values, float), *texts)


def events(rows):
    """Return columns of (seconds from the start, duration in seconds, name, phase[, {other columns}])."""
    rows = [row if len(row) == 5 else (*row, {}) for row in rows]
    if not rows:
        return EventColumns.empty()

    def column(name, default, kind=np.int64):
        return np.asarray([row[4].get(name, default) for row in rows], kind)

    def text(name, default):
        return Category.of(row[4].get(name, default) for row in rows)

    return EventColumns(
        np.round(START_US + np.asarray([row[0] for row in rows], float) * 1e6),
        np.round(np.asarray([row[1] for row in rows], float) * 1e6),
        Category.of(row[2] for row in rows),
        Category.of(row[3] for row in rows),
        text("node", "algo-1-0"),
        text("kind", "pythontimeline"),
        column("step", -1),
        column("pid", 27),
        column("tid", -1),
        column("worker_id", -1, np.int32),
        column("num_workers", -1, np.int32),
        column("pin_memory", -1, np.int8),
        text("args", ""),
    )


def samples(  # a job in numbers
    count, *, gpus=2, cores=4, use=90.0, memory=50.0, cpu=30.0, wait=1.0, every=0.5, nodes=("algo-1",), jitter=0.0
):
    """Return system rows of a job with constant metrics; `use` and `memory` may be functions (sample, gpu) → value."""
    rows = []
    for index in range(count):
        at = index * every + 0.001
        for node in nodes:
            for core in range(cores):
                rows.append((at, "cpu", f"cpu{core}", "CPUUtilization", cpu, node))
                rows.append((at, "cpu", f"cpu{core}", "I/OWaitPercentage", wait, node))
            rows.append((at + 0.0001, "memory", "MemoryUsedPercent", "", 20.0, node))
            for gpu in range(gpus):
                used = use(index, gpu) if callable(use) else use
                held = memory(index, gpu) if callable(memory) else memory
                rows.append((at + 0.002 + jitter, "gpu", f"gpu{gpu}", "GPUUtilization", used, node))
                rows.append((at + 0.002 + jitter, "gpu", f"gpu{gpu}", "GPUMemoryUtilization", held, node))
            rows.append((at + 0.004 + jitter, "network", "ReceiveBytesPerSecond", "Algorithm", 1000.0, node))
    return system(rows)


def batches(rows, happenings=None):
    """Split columns as a source delivers them: by minute, events by their end."""
    happenings = EventColumns.empty() if happenings is None else happenings
    minutes = (rows.timestamp * 1e6 // 60e6).astype(int)
    filed = (happenings.end_us // 60e6).astype(int)
    return [
        MemoryBatch(rows[minutes == minute], happenings[filed == minute], minute * 60_000_000)
        for minute in sorted({*minutes.tolist(), *filed.tolist()})
    ]


def source_of(rows, happenings=None):
    return MemorySource(batches(rows, happenings))
