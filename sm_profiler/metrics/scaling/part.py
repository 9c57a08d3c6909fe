"""Work of a worker: read the files of a part, fold its slices, and return their states as bytes."""

from __future__ import annotations

import time
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import attrs
import msgspec
import numpy as np

from sm_profiler import plugins
from sm_profiler._version import __version__
from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.executors import Remote
from sm_profiler.folding import (
    LOOK_AHEAD_US,
    MAX_EMPTY_TOTAL,
    MAX_EMPTY_WINDOWS,
    MAX_PLAUSIBLE_US,
    MAX_SPAN_US,
    EvaluationWindow,
    Slice,
    SliceTree,
    WindowCutter,
)
from sm_profiler.formats.columns import Ints
from sm_profiler.formats.layout import MINUTE_US
from sm_profiler.metrics.metric_folds import new_folds
from sm_profiler.metrics.scaling import codec
from sm_profiler.source.item_table import OrderedItems, host_of
from sm_profiler.source.opening import Listed, open_listed
from sm_profiler.source.profile import Batch, FileQuality, ProfileSource

SLACK_US = 2 * MINUTE_US  # rows end at most this long after the start of the minute in their file's name
GROUP_BYTES = 64 << 20  # of files that a group of nodes writes in a minute: its worker holds six minutes of rows


@attrs.frozen
class JobPart:
    """Slices that one worker folds.

    Attributes:
        group: number of the nodes' group.
        hosts: numbers of its nodes; none: all nodes.
        first, last: numbers of the slices; `last` is not included.
        start_us: where the worker begins to cut windows.
        from_us, until_us: start of its first window, and end of its last; None: to the end of the job.
        more: there are files after those it reads.
        minutes: of all files in the time that it reads, those of other nodes too; empty without hosts.
        own: the files that it accounts for.
        items: all files that it reads.
    """

    group: int
    hosts: tuple[int, ...]
    first: int
    last: int
    start_us: int
    from_us: int
    until_us: int | None
    more: bool
    minutes: tuple[int, ...]
    own: OrderedItems
    items: OrderedItems

    @property
    def size(self) -> int:
        """Bytes that its worker reads."""
        return int(self.items.sizes.sum())


def group_nodes(items: OrderedItems, wanted: int) -> list[tuple[int, ...]]:
    """Divide the nodes of a job into groups of about equal bytes.

    Args:
        items: the job's files.
        wanted: number of groups at most.

    Returns:
        The numbers of the nodes of each group; one empty group if they cannot be divided.
    """
    hosts = items.hosts
    wanted = min(wanted, len(np.unique(hosts)))
    if wanted < 2 or not hosts.all():  # one group is all nodes
        return [()]
    nodes, places = np.unique(hosts, return_inverse=True)
    sizes = dict(zip(nodes.tolist(), np.bincount(places, items.sizes).tolist(), strict=True))
    groups: list[list[int]] = [[] for _ in range(wanted)]
    filled = np.zeros(wanted)
    for host in sorted(sizes, key=lambda host: (-sizes[host], host)):
        smallest = int(filled.argmin())
        groups[smallest].append(host)
        filled[smallest] += sizes[host] + 1
    return [tuple(sorted(group)) for group in groups]


def groups_needed(items: OrderedItems) -> int:
    """Return the number of groups of nodes of which each writes at most GROUP_BYTES a minute."""
    if not len(items):
        return 1
    minutes = (items.at_us - items.at_us.min()) // MINUTE_US
    span = int(minutes.max()) + 1
    return int(max(-(-int(items.sizes.sum()) // (span * GROUP_BYTES)), 1))


def plan_parts(
    items: OrderedItems,
    parts: int,
    *,
    interval_us: int,
    slice_windows: int,
    groups: int = 1,
) -> list[JobPart]:
    """Cut a job into parts of about equal bytes.

    Args:
        items: its files, in reading order.
        parts: the number of stretches of time at most.
        interval_us: length of a window.
        slice_windows: windows of a slice.
        groups: the number of groups of nodes at most, into which each stretch is divided.

    Returns:
        The parts in the order of time; fewer than two if the job cannot be cut: it is short, or has gaps that windows skip.
    """
    if not len(items):
        return []
    of_items: Ints = items.at_us - items.at_us % MINUTE_US
    minutes = np.unique(of_items)
    begin, slice_us = int(minutes[0]), slice_windows * interval_us
    gaps = np.diff(minutes) // interval_us
    count = int((minutes[-1] - begin) // slice_us) + 1
    if (
        gaps.max(initial=0) >= MAX_EMPTY_WINDOWS
        or gaps[gaps > 1].sum() >= MAX_EMPTY_TOTAL
        or count * slice_us >= MAX_SPAN_US
    ):
        return []
    ends = np.cumsum(np.bincount((of_items - begin) // slice_us, items.sizes, count))
    nearest = np.abs(ends[:, None] - ends[-1] * np.arange(1, parts) / parts).argmin(axis=0) + 1
    cuts = sorted({0, count, *nearest.tolist()})
    # Earlier rows that no file promises belong to a window before the first; rows of the others are in these files.
    warm_us = -(-SLACK_US // interval_us) * interval_us + interval_us
    grouped = group_nodes(items, groups)
    hosts = items.hosts

    def stretch(first: int, last: int) -> Iterator[JobPart]:
        from_us, until_us = begin + first * slice_us, begin + last * slice_us if last < count else None
        start_us = max(from_us - warm_us, begin)
        after = minutes[minutes >= until_us + LOOK_AHEAD_US] if until_us is not None else minutes[-1:]
        end_us = int(after[0]) if len(after) else int(minutes[-1])
        begin_us = start_us // MINUTE_US * MINUTE_US
        read = (of_items >= begin_us) & (of_items <= end_us)
        own = (of_items >= from_us) | (first == 0)
        if until_us is not None:
            own &= of_items < until_us
        clock = tuple(minutes[(minutes >= begin_us) & (minutes <= end_us)].tolist())
        more = end_us < int(minutes[-1])
        for number, group in enumerate(grouped):
            mine = np.isin(hosts, group) if group else np.ones(len(items), np.bool_)
            yield JobPart(
                number, group, first, last, start_us, from_us, until_us, more, clock if group else (),
                items.chosen(np.flatnonzero(own & mine)), items.chosen(np.flatnonzero(read & mine)),
            )  # fmt: skip

    return [part for first, last in pairwise(cuts) for part in stretch(first, last)]


# Of a rule: what its constructor sets, and no state.
_SET_UP = {
    "base_trial", "other_trials", "trials", "logger", "_actions", "parameters", "compat", "scan_interval_us", "rule_name",
    "_last_us",
}  # fmt: skip

COMPRESSION = 1  # the fastest level takes a state to a quarter


class FoldTask(msgspec.Struct):
    """A part as it is sent to a worker; fields as in `JobPart` and `ProfileSource`."""

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
        irregular: the rows are not where the names of the files promise them: the job must be read in one process.
        states: level, number and state of each merged stretch.
        quality: outcome of each file of the part.
        metadata: path → records.
        rows: number of rows that were folded.
        cpu_s: processor time that it took.
        clock: start of each minute by whose files the other groups may cut windows: they hold rows of about that minute.
    """

    irregular: str = ""
    states: list[tuple[int, int, bytes]] = []
    quality: list[FileQuality] = []
    metadata: dict[str, list[dict[str, Any]]] = {}
    rows: int = 0
    cpu_s: float = 0.0
    clock: list[int] = []


class _IrregularError(ProfilerError):
    """Rows are not where the names of the files promise them."""


def version() -> str:
    """Return what has to be the same on all workers: the version, and the rules of other packages with theirs."""
    return __version__ + plugins.versions(plugins.RULES)


@partial(Remote, version=version)
def fold_part(task: FoldTask) -> Answer:
    """Fold a part."""
    try:
        return _folded(task)
    except _IrregularError as error:
        return Answer(irregular=str(error))


def _folded(task: FoldTask) -> Answer:
    began_s = time.process_time()
    source = open_listed(task.uri, task.job, task.files)
    tree, rows, clock = SliceTree(), 0, list[int]()
    state, number = Slice(new_folds(task.parameters)), task.first
    begin_us, has_windows = task.from_us - task.first * task.slice_us, False
    for window in _windows(source, task, clock):
        if window.start_us >= begin_us + (number + 1) * task.slice_us:
            if has_windows or not number:  # as in one process, only the first slice may have none
                tree.add(0, number, state)
            state, number = Slice(new_folds(task.parameters)), (window.start_us - begin_us) // task.slice_us
        state.update(window)
        has_windows = True
        rows += len(window.new_system) + len(window.new_events)
        del window
    if has_windows or not number:
        tree.add(0, number, state)
    own = set(task.own)
    quality = [each for each in source.quality() if each.path in own]
    metadata = {path: list(records) for path, records in source.metadata_by_file().items() if path in own}
    states = [(level, at, encode_slice(merged)) for level, at, merged in tree.parts()]
    cpu_s = time.process_time() - began_s
    return Answer(states=states, quality=quality, metadata=metadata, rows=rows, cpu_s=cpu_s, clock=clock)


def _windows(source: ProfileSource, task: FoldTask, clock: list[int]) -> Iterator[EvaluationWindow]:
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


def _cut(cutter: WindowCutter, batch: Batch, task: FoldTask, clock: list[int]) -> Iterator[EvaluationWindow]:
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
            vars(rule).update({} if name in broken else rules[name])  # a rule that could not be created has no state
        report.broken, report.first_met, report.windows = broken, first_met, windows
        for fold, state in zip(folds[1:], states, strict=True):
            vars(fold).update(state)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"a worker's answer is damaged: {error}") from None
    return Slice(folds, failed)
