"""Work of a worker: read the files of a part, fold its slices, and return their states as bytes."""

from __future__ import annotations

import time
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from sm_profiler._version import __version__
from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.metrics.metric_folds import MetricFolds
from sm_profiler.metrics.scaling import codec
from sm_profiler.metrics.scaling.plan import SLACK_US
from sm_profiler.rules import ProfilerReport
from sm_profiler.rules.engine import Slice, SliceTree
from sm_profiler.rules.window import LOOK_AHEAD_US, MAX_PLAUSIBLE_US, EvaluationWindow, WindowCutter
from sm_profiler.source.item import host_of
from sm_profiler.source.listed import Listed, open_listed
from sm_profiler.source.profile import Batch, ProfileSource

# Of a rule: what its constructor sets, and no state.
_SET_UP = {
    "base_trial", "other_trials", "trials", "logger", "_actions", "parameters", "compat", "scan_interval_us", "rule_name",
    "_last_us",
}  # fmt: skip

COMPRESSION = 1  # the fastest level takes a state to a quarter


class Task(msgspec.Struct):
    """A part as it is sent to a worker; fields as in `plan.Part` and `ProfileSource`."""

    version: str
    uri: str
    job: str | None
    parameters: dict[str, Any]
    first: int
    last: int
    start_us: int
    from_us: int
    until_us: int | None
    slice_us: int
    interval_us: int
    more: bool
    files: list[Listed]
    own: list[str]
    hosts: list[int] = []
    minutes: list[int] = []


class Answer(msgspec.Struct):
    """Result of a part.

    Attributes:
        error: one line if the part cannot be read at all.
        irregular: the rows are not where the names of the files promise them: the job must be read in one process.
        states: level, number and state of each merged stretch.
        quality: path, status, lost records and reason of each file of the part.
        metadata: path → records.
        rows: number of rows that were folded.
        cpu_s: processor time that it took.
        clock: start of each minute by whose files the other groups may cut windows: they hold rows of about that minute.
    """

    error: str = ""
    irregular: str = ""
    states: list[tuple[int, int, bytes]] = []
    quality: list[tuple[str, str, int, str]] = []
    metadata: dict[str, list[dict[str, Any]]] = {}
    rows: int = 0
    cpu_s: float = 0.0
    clock: list[int] = []


_TASK, _ANSWER = msgspec.msgpack.Decoder(Task), msgspec.msgpack.Decoder(Answer)


class _IrregularError(ProfilerError):
    """Rows are not where the names of the files promise them."""


def new_folds(parameters: Mapping[str, object]) -> list[Any]:
    """Return the rules and the report's own folds, without any data."""
    values: dict[str, Any] = dict(parameters)
    return [ProfilerReport(**values), *MetricFolds().all()]


def fold_part(data: bytes) -> bytes:
    """Fold a part. Task and answer are bytes, so that an executor transports nothing else."""
    try:
        task = _TASK.decode(data)
        if task.version != __version__:
            raise SourceError(
                f"sm-profiler is {task.version} where the report is made and {__version__} on a worker: install the same version"
            )
        return msgspec.msgpack.encode(_folded(task))
    except _IrregularError as error:
        return msgspec.msgpack.encode(Answer(irregular=str(error)))
    except ProfilerError as error:
        return msgspec.msgpack.encode(Answer(error=str(error)))


def decode_answer(data: bytes) -> Answer:
    """Return the result of a part.

    Raises:
        SourceError: the bytes are not such a result.
    """
    try:
        return _ANSWER.decode(data)
    except msgspec.MsgspecError as error:
        raise SourceError(f"a worker's answer is damaged: {error}") from None


def _folded(task: Task) -> Answer:
    began_s = time.process_time()
    source = open_listed(task.uri, task.job, task.files)
    tree, rows, clock = SliceTree(), 0, list[int]()
    state, number = Slice(new_folds(task.parameters)), task.first
    begin_us = task.from_us - task.first * task.slice_us
    for window in _windows(source, task, clock):
        while window.start_us >= begin_us + (number + 1) * task.slice_us:
            tree.add(0, number, state)
            state, number = Slice(new_folds(task.parameters)), number + 1
        state.update(window)
        rows += len(window.new_system) + len(window.new_events)
        del window
    tree.add(0, number, state)
    own = set(task.own)
    quality = [(one.path, one.status, one.lost, one.reason) for one in source.quality() if one.path in own]
    metadata = {path: list(records) for path, records in source.metadata_by_file().items() if path in own}
    states = [(level, at, encode_slice(one)) for level, at, one in tree.parts()]
    cpu_s = time.process_time() - began_s
    return Answer(states=states, quality=quality, metadata=metadata, rows=rows, cpu_s=cpu_s, clock=clock)


def _windows(source: ProfileSource, task: Task, clock: list[int]) -> Iterator[EvaluationWindow]:
    """Yield the windows of the part, as one process cuts them; `clock` receives the minutes of `Answer.clock`."""
    cutter = WindowCutter(None, task.interval_us)
    cutter.start_at(task.start_us)

    def mine() -> Iterator[EvaluationWindow]:
        for batch in source.batches(unsettled=True):
            found = _cut(cutter, batch, task, clock)
            del batch  # its rows are freed as soon as no window needs them
            yield from found
        if task.first and source.joins_failed:
            raise _IrregularError("events begin in files of long before their end")
        if task.until_us is None:
            yield from cutter.rest()
        else:
            if task.more and not task.hosts and cutter.latest_us < task.until_us + LOOK_AHEAD_US:
                raise _IrregularError("files of a minute hold nothing that can be read")
            yield from cutter.until(task.until_us)

    for window in mine():
        if window.start_us >= task.from_us and (task.until_us is None or window.start_us < task.until_us):
            yield window
        del window


def _cut(cutter: WindowCutter, batch: Batch, task: Task, clock: list[int]) -> Iterator[EvaluationWindow]:
    """Add a batch and yield windows when one process would: whether a late event counts in its own depends on that."""
    _check(batch)
    if not task.hosts:
        cutter.add(batch)
        del batch
        yield from cutter.ready()
        return
    _check_hosts(batch, set(task.hosts))
    minute_us = batch.minute_us
    before = bisect_left(task.minutes, minute_us)
    if before:
        yield from cutter.passed(task.minutes[before - 1])
    if _sets_clock(batch):
        clock.append(minute_us)
    cutter.add(batch)
    del batch
    yield from cutter.passed(minute_us)


def _check(batch: Batch) -> None:
    """Raise an error if rows end later than the name of their file: an earlier part may need them."""
    limit = batch.minute_us + SLACK_US
    if len(batch.system) and not np.all(batch.system.timestamp * 1e6 < limit):
        raise _IrregularError("measurements are later than the name of their file")
    if len(batch.events) and not np.all(batch.events.end_us < limit):
        raise _IrregularError("events end later than the name of their file")


def _check_hosts(batch: Batch, hosts: set[int]) -> None:
    """Raise an error if rows name a node other than their file: another group may have rows of that node."""
    if not {host_of(node) for node in (*batch.system.node.present(), *batch.events.node.present())} <= hosts:
        raise _IrregularError("rows name another node than their file")


def _sets_clock(batch: Batch) -> bool:
    """Return whether all windows that end LOOK_AHEAD_US before a minute are cut once its files are read."""
    since_us = batch.minute_us - LOOK_AHEAD_US
    events = batch.events
    late = (events.start_us >= since_us) & (np.abs(events.duration_us) <= MAX_PLAUSIBLE_US)
    return bool(np.any(batch.system.timestamp * 1e6 >= since_us) or late.any())


def encode_slice(state: Slice) -> bytes:
    """Return the state of a slice as bytes, compressed: it crosses the network."""
    report, *folds = state.loaded().folds
    rules = {name: rule_state(report.rule(name)) for name in report.rules}
    data = codec.encode([
        rules, dict(report.broken), dict(report.first_met), report.windows, [dict(vars(fold)) for fold in folds],
        dict(state.broken),
    ])  # fmt: skip
    return zlib.compress(data, COMPRESSION)


def rule_state(rule: Any) -> dict[str, Any]:
    """Return the state of a rule, without what its constructor sets."""
    return {key: value for key, value in vars(rule).items() if key not in _SET_UP}


def decode_slice(data: bytes, parameters: Mapping[str, object]) -> Slice:
    """Return the state of a slice.

    Raises:
        SourceError: the bytes are not such a state.
    """
    try:
        rules, broken, first_met, windows, states, failed = codec.decode(codec.unpacked(data), arrived=len(data))
        folds = new_folds(parameters)
        report = folds[0]
        for name, rule in report.rules.items():
            vars(rule).update(rules[name])
        report.broken, report.first_met, report.windows = broken, first_met, windows
        for fold, state in zip(folds[1:], states, strict=True):
            vars(fold).update(state)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"a worker's answer is damaged: {error}") from None
    return Slice(folds, failed)
