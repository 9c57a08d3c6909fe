"""Attempts of interrupted jobs: which processes succeed each other, and the downtime between them.

Attempts are distinguished by process and start time in the hook's metadata, because a restarted container may reuse the
pid. Processes without a rank are named after their pid; those of a node that never ran at the same time are attempts
of one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats, Mask
from sm_profiler.formats.process_end import COMPLETED, END, END_CODE, END_STEP, END_US, EXITED
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.step_fold import TRAIN, StepRows, StepSummary, column
from sm_profiler.metrics.step_sample import joined_judged, judged_all
from sm_profiler.metrics.system_fold import SystemSeries

MIN_SECONDS, MAX_SECONDS = 1e9, 1e11  # since the epoch; times before 2001 and after 5138 are damage
TRAINING = "Training"
_SILENCE_S = 10.0  # less than that may pass between two signs of life
_SAMPLES = 3  # so many samples of the monitor may be missing
TAKEN_AWAY = frozenset({"Interrupted", "Restarting"})  # what ends an attempt; another may follow


@attrs.frozen
class Transition:
    """A secondary status, when it began, and when it ended; None if that is unknown."""

    status: str
    start: float | None
    end: float | None


def transitions(description: Mapping[str, Any]) -> list[Transition]:
    """Return the secondary states of a job; damaged rows are left out."""
    rows = description.get("SecondaryStatusTransitions")
    return [
        Transition(str(row.get("Status")), _seconds(row.get("StartTime")), _seconds(row.get("EndTime")))
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, Mapping)
    ]


def described_interruptions(description: Mapping[str, Any]) -> int:
    """Return how often a job was interrupted."""
    return sum(one.status in TAKEN_AWAY for one in transitions(description))


def ended_attempts(description: Mapping[str, Any]) -> list[tuple[float, bool]]:
    """Return when each attempt began to train, and whether it has ended."""
    found: list[tuple[float, bool]] = []
    is_new = True
    for one in transitions(description):
        if one.status in TAKEN_AWAY:
            is_new = True
        elif one.status == TRAINING and one.start is not None:
            if is_new:
                found.append((one.start, one.end is not None))
            else:  # a job that was updated trains again
                found[-1] = found[-1][0], one.end is not None
            is_new = False
    return found


def _seconds(value: object) -> float | None:
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value) if isinstance(value, (int, float)) and MIN_SECONDS < value < MAX_SECONDS else None


@attrs.frozen
class Attempts:
    """Attempts of one process.

    Attributes:
        count: 1 for a process that was never interrupted.
        breaks: rows before which steps are missing: the process was interrupted, or the profiler was switched off for a while.
        restarts: start of the first step of the second, third, … attempt, microseconds since the epoch.
        down_s: seconds from the last step of an attempt to the first wait or step of the next, summed.
        off_s: the same for the time in which the profiler was switched off.
    """

    count: int = 1
    breaks: tuple[int, ...] = ()
    restarts: tuple[float, ...] = ()
    down_s: float = 0.0
    off_s: float = 0.0

    @property
    def unseen_s(self) -> float:
        """Seconds of the loop in which nothing was recorded."""
        return self.down_s + self.off_s


def find_attempts(name: str, rows: StepRows, metadata: Sequence[Mapping[str, Any]], pids: int) -> Attempts:
    """Find the attempts of one process.

    Args:
        name: name of the process.
        rows: its steps.
        metadata: records of all processes.
        pids: number of processes that recorded its steps, for profiles without metadata.
    """
    recordings = {
        one["start_us"]: one for one in metadata if process_name(one) == name and one.get("start_us") is not None
    }
    breaks, restarts = list[int](), list[float]()
    down_us = off_us = 0.0
    for before, after in pairwise(recordings[start] for start in sorted(recordings)):
        # the recorded start may be the first event of the new process, and thus its first wait
        at = int(np.searchsorted(rows.start, after["start_us"] - 1))
        if not 0 < at < len(rows) or at in breaks or rows.number[at] > rows.number[at - 1]:
            continue
        breaks.append(at)
        gap = max(float(rows.start[at] - rows.parts[at, column("wait")] - rows.end[at - 1]), 0.0)
        if _is_same_process(before, after):
            off_us += gap
        else:
            restarts.append(float(rows.start[at]))
            down_us += gap
    count = max(len(restarts) + 1, pids)
    return Attempts(count, tuple(breaks), tuple(restarts), down_us / 1e6, off_us / 1e6)


def _is_same_process(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether a recording is by the process of the one before: it had started earlier than that recording."""
    started = after.get("process_us")
    return after.get("pid") == before.get("pid") and started is not None and started <= before["start_us"]


def trainings(metadata: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return when each training after the first began, microseconds since the epoch.

    A process that trained and then ended by itself, without an error, was not interrupted: what trains on its node after
    that is another training, as two scripts of one batch job are.
    """
    latest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in metadata:
        if _start_us(one) is not None:
            latest.setdefault((process_name(one), one.get("pid"), _start_us(one)), {}).update(one)
    found, before = list[float](), list[dict[str, Any]]()
    for one in sorted((one for one in latest.values() if one.get(END_STEP) != 0), key=_start_us):  # type: ignore[arg-type]
        begin = _start_us(one)
        if any(one.get("node") == other.get("node") for other in before) and all(_ended_well(o, begin) for o in before):
            found.append(float(begin or 0))
            before = []
        before.append(one)
    return found


def processes_before(metadata: Sequence[Mapping[str, Any]]) -> frozenset[tuple[str, int]]:
    """Return name and pid of the processes that belong to a training before the last one."""
    begin_us = max(trainings(metadata), default=0.0)
    earlier, later = set[tuple[str, int]](), set[tuple[str, int]]()
    for one in metadata:
        if isinstance(pid := one.get("pid"), int):
            (earlier if (_start_us(one) or begin_us) < begin_us else later).add((process_name(one), pid))
    return frozenset(earlier - later)


def _start_us(one: Mapping[str, Any]) -> float | None:
    start = one.get("process_us") or one.get("start_us")
    return float(start) if isinstance(start, (int, float)) else None


def _ended_well(one: Mapping[str, Any], before_us: float | None) -> bool:
    """Return whether a process had ended by itself, without an error, before a moment."""
    at = one.get(END_US)
    is_over = isinstance(at, (int, float)) and before_us is not None and at <= before_us
    return is_over and one.get(END) in {EXITED, COMPLETED} and not one.get(END_CODE)


def since_training(
    found: StepSummary, metadata: Sequence[Mapping[str, Any]], begin_us: float
) -> tuple[StepSummary, tuple[dict[str, Any], ...]]:
    """Return the steps and the records of the processes that began at a moment or later."""
    records = tuple(dict(one) for one in metadata if (start := _start_us(one)) is None or start >= begin_us)
    steps, loop = dict[str, StepRows](), dict(found.loop)
    for name, rows in found.steps.items():
        kept = rows.start >= begin_us
        if not kept.any():
            continue
        steps[name] = rows
        if not kept.all() and name not in found.judged:
            steps[name] = rows[kept]
            first = float(rows.start[kept][0] - rows.parts[kept, column("wait")][0])
            loop[name] = max(loop[name][0], first), loop[name][1]

    def own(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name in steps}

    return attrs.evolve(
        found, steps=steps, loop=own(loop), overhead_us=own(found.overhead_us), windows_us=own(found.windows_us), judged=own(found.judged),
        declared_us=own(found.declared_us), collected_us=own(found.collected_us),
        pids=dict.fromkeys(own(found.pids), 1),
    ), records  # fmt: skip


def join_successors(
    found: StepSummary, metadata: Sequence[Mapping[str, Any]]
) -> tuple[StepSummary, list[dict[str, Any]]]:
    """Join processes without a rank that succeeded each other on a node, under the name of the first."""
    named = {process_name(one): str(one.get("node")) for one in metadata if one.get("rank") is None}
    renamed: dict[str, str] = {}
    for node in set(named.values()):
        names = sorted((name for name in found.steps if named.get(name) == node), key=lambda name: found.loop[name])
        if names and all(found.loop[before][1] <= found.loop[after][0] for before, after in pairwise(names)):
            renamed |= dict.fromkeys(names[1:], names[0])
    records = [
        dict(one) | ({"name": renamed[process_name(one)]} if process_name(one) in renamed else {}) for one in metadata
    ]
    if not renamed:
        return found, records
    steps, loop = dict(found.steps), dict(found.loop)
    overhead, windows = dict(found.overhead_us), dict(found.windows_us)
    declared, judged = dict(found.declared_us), dict(found.judged)
    for name, first in renamed.items():
        if first in judged or name in judged:
            before, after = (judged.pop(one) if one in judged else judged_all(steps[one]) for one in (first, name))
            judged[first] = joined_judged(before, after)
        steps[first] = StepRows.joined(steps[first], steps.pop(name))
        loop[first] = (loop[first][0], loop.pop(name)[1])
        for own in (overhead, windows):
            if name in own:
                own[first] = own.get(first, 0.0) + own.pop(name)
        if name in declared:
            both, more = dict(declared.get(first, {})), declared.pop(name)
            declared[first] = {one: both.get(one, 0.0) + more.get(one, 0.0) for one in {**both, **more}}
    found = attrs.evolve(
        found, steps=steps, loop=loop, overhead_us=overhead, windows_us=windows, declared_us=declared, judged=judged
    )
    return found, records


def between_attempts(spans: Sequence[tuple[float, float]], system: SystemSeries, start: float, end: float) -> float:
    """Return the seconds of a job without a sign of life of any process or monitor: a requeued job holds no machine then.

    Args:
        spans: when processes are known to have run, seconds since the epoch.
        system: system metrics, whose samples are signs of life, too.
        start, end: the job's.
    """
    known = sorted((max(first, start), min(last, end)) for first, last in spans if last >= start and first <= end)
    begins, ends = np.asarray(known, np.float64).reshape(-1, 2).T
    silence, more = _SILENCE_S, list[Floats]()
    for data in (system.of("cpu") or system.of("memory")).values():
        at = (data.first + np.flatnonzero(data.count)) * float(data.width)
        if len(at) > 1:
            silence = max(silence, _SAMPLES * float(np.median(np.diff(at))) - data.width)
        more.append(np.stack([at, at + data.width]))
    if more:
        samples = np.concatenate(more, axis=1)
        if known:  # a bucket of a long job is coarse, and the processes in it are exact
            last = np.maximum.accumulate(ends)[np.searchsorted(begins, samples[1], side="right") - 1]
            samples = samples[:, (begins[0] > samples[1]) | (last < samples[0])]
        begins, ends = np.concatenate([begins, samples[0]]), np.concatenate([ends, samples[1]])
    order = np.argsort(begins, kind="stable")
    gaps = begins[order][1:] - np.maximum.accumulate(ends[order])[:-1]
    return float(gaps[gaps > silence].sum())


def evaluation_seconds(rows: StepRows, breaks: Sequence[int] = ()) -> float:
    """Return the seconds from the first wait to the last step of each run of evaluation steps; attempts split runs."""
    evaluation = rows.mode != TRAIN
    if not evaluation.any():
        return 0.0
    before = np.concatenate([[False], evaluation[:-1]])
    after = np.concatenate([evaluation[1:], [False]])
    for at in breaks:
        before[at] = after[at - 1] = False
    first, last = np.flatnonzero(evaluation & ~before), np.flatnonzero(evaluation & ~after)
    begin = rows.start[first] - rows.parts[first, column("wait")]
    return float((rows.end[last] - begin).sum() / 1e6)


def same_attempt(rows: StepRows, breaks: Sequence[int]) -> Mask:
    """Return for each row but the first whether it is in the same attempt as its predecessor."""
    same = np.ones(max(len(rows) - 1, 0), np.bool_)
    same[np.asarray(breaks, np.int64) - 1] = False
    return same


def process_name(one: Mapping[str, Any]) -> str:
    """Return the name of the process that wrote a metadata record, `algo-1-0`."""
    if isinstance(one.get("name"), str):
        return str(one["name"])
    number = one.get("pid") if one.get("rank") is None else one.get("rank")
    return f"{one.get('node')}-{number}"


def gpus_of_others(
    system: SystemSeries,
    loop: tuple[float, float],
    node_of: Mapping[str, str],
    metadata: Sequence[Mapping[str, Any]],
) -> tuple[tuple[str, str], ...]:
    """Return the GPUs, as node and device, that are busy on nodes whose processes all recorded that they use none.

    An idle GPU is not among them: that the training does not use it is worth a finding.

    Args:
        system: system metrics.
        loop: start and end of the training loop.
        node_of: name of a process that trains → its node.
        metadata: records of all processes. One has several, the first before it has trained; then nothing is known yet.
    """
    states: dict[str, set[bool]] = {name: set() for name in node_of}
    nodes = dict(node_of)
    for one in metadata:
        name, uses = process_name(one), one.get("uses_gpu")
        nodes.setdefault(name, str(one.get("node")))
        states.setdefault(name, set()).update({uses} if isinstance(uses, bool) else ())
    using = {nodes[name] for name, found in states.items() if found != {False}}
    without = set(nodes.values()) - using
    return tuple(
        gpu
        for gpu, data in system.of("gpu").items()
        if gpu[0] in without and data.mean_within(*loop) > thresholds.GPU_NEVER
    )
