"""Fold events into one row per step: the time of each part of the loop."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats import event_names
from sm_profiler.formats.columns import Category, EventColumns, Floats, Ints, Table
from sm_profiler.report import parts
from sm_profiler.report.covered import Covered, contains_any, not_covered_before, without_inner
from sm_profiler.report.formatting import natural_key
from sm_profiler.report.part_table import PartTable
from sm_profiler.report.step_rows import (
    COMMUNICATION,
    DECLARED_IN_STEP,
    EVAL,
    GC,
    LOADER,
    MODES,
    OWN,
    OWN_IN_STEP,
    QUEUED,
    RESULTS,
    TRAIN,
    StepRows,
    column,
    columns,
)
from sm_profiler.report.step_sample import (
    MAX_STEPS,
    Judged,
    StepSample,
    common_level,
    judged,
    level_of,
    limit_of,
    spread_results,
    stretch_of,
    thin,
)

__all__ = [
    "COMMUNICATION", "DECLARED_IN_STEP", "EVAL", "GC", "LOADER", "MODES", "OWN", "OWN_IN_STEP", "QUEUED", "RESULTS", "TRAIN",
    "EventWindow", "LoaderSettings", "StepFold", "StepRows", "StepSummary", "classify", "column", "columns", "each_process",
    "spread_results",
]  # fmt: skip

# Durations are multiples of 1 / 1024 µs, so that their sums are exact, and the same in any order, up to 100 days.
_FRACTION = 1024
_COLLECTIVES = ("nccl", "allreduce", "all_reduce", "allgather", "reducescatter", "reduce_scatter", "broadcast")


class EventWindow(Protocol):
    """The part of an evaluation window that this fold reads."""

    @property
    def start_us(self) -> int:
        """Start of the window, microseconds since the epoch."""

    @property
    def new_events(self) -> EventColumns:
        """Events of the window, each in one window only."""


@attrs.frozen(eq=False)
class _LoopEvents(Table):
    """The columns of events that this fold reads, which are many times selected from."""

    start_us: Floats
    duration_us: Floats
    name: Category
    phase: Category
    step: Ints
    pid: Ints
    worker_id: NDArray[np.int32]

    @classmethod
    def of(cls, events: EventColumns) -> _LoopEvents:
        """Return the events."""
        found = cls(*(getattr(events, field.name) for field in attrs.fields(cls)))
        return attrs.evolve(found, duration_us=np.rint(found.duration_us * _FRACTION) / _FRACTION)

    @property
    def end_us(self) -> Floats:
        """End of each event."""
        return self.start_us + self.duration_us


@attrs.frozen(eq=False)
class _Chunk:
    """Steps of one process and window, with the times that belong to steps of the neighbouring windows.

    No part of it changes, so that copies of a fold share their chunks.
    """

    rows: StepRows
    before: Floats  # shape (columns,): phases of the last step of the previous window
    after: Floats  # shape (columns,): waits for the first step of the next window
    first_us: float  # earliest event of the loop
    last_us: float
    declared: dict[str, float]  # the script's own phases: name → µs in training
    collected: dict[str, float]  # garbage collections: part of the loop → µs
    stretch: NDArray[np.int8]  # of each step, as in StepSample
    sample: StepSample | None = None  # None: all steps are in `rows`
    late: bool = False  # some arrived after later ones

    def __deepcopy__(self, _: dict[int, Any]) -> _Chunk:
        return self

    def thinned(self, level: int, limit: int) -> _Chunk:
        """Return the chunk with the steps that a level keeps."""
        rows, sample = thin(self.rows, self.sampled, level, limit)
        return attrs.evolve(self, rows=rows, stretch=sample.stretch, sample=sample)

    @property
    def sampled(self) -> StepSample:
        """The sample, which may hold all steps."""
        return StepSample.of(self.rows, self.stretch) if self.sample is None else self.sample


@attrs.frozen(eq=False)
class LoaderSettings:
    """Settings of the data loader, -1 if unknown."""

    num_workers: int = -1
    pin_memory: int = -1


@attrs.frozen(eq=False)
class StepSummary:
    """Result of the fold; dictionaries by process name (`algo-1-0`)."""

    steps: dict[str, StepRows]
    loop: dict[str, tuple[float, float]]  # first and last moment of the loop, µs
    loader: LoaderSettings
    overhead_us: dict[str, float]  # time spent by the hook itself
    pids: dict[str, int]  # processes with this name; more than one after a restart
    declared_us: dict[str, dict[str, float]] = attrs.field(factory=dict)  # process → the script's own phases
    collected_us: dict[str, dict[str, float]] = attrs.field(factory=dict)  # process → part → garbage collections
    judged: dict[str, Judged] = attrs.field(factory=dict)  # processes of which only some steps were kept


class StepFold:
    """Collects steps window by window; folds of other minutes or nodes merge.

    Needs 25 bytes a step, and 8 more for each part that is recorded, of at most about one and a half MAX_STEPS.
    """

    def __init__(self) -> None:
        self._chunks: dict[tuple[str, int], _Chunk] = {}
        self._overhead: dict[str, float] = {}
        self._pids: dict[str, set[int]] = {}
        self._loader = (-np.inf, -1, -1)  # of the latest event: its start, workers, pinned memory
        self._levels: dict[str, int] = {}
        self._held, self._room = 0, MAX_STEPS * 3 // 2  # steps, and how many may be held until some are left out

    def update(self, window: EventWindow) -> None:
        """Add the events of one window."""
        events = window.new_events
        if not len(events):
            return
        kinds = classify(events)
        self._remember_loader(events, kinds)
        keep = kinds != _IGNORED
        if not keep.any():
            return
        modes, loop_events = _modes(events), _LoopEvents.of(events)
        for node, rows in events.node.groups(keep):
            self._add(node, window.start_us, loop_events[rows], kinds[rows], modes[rows])
        self._bound()

    def _remember_loader(self, events: EventColumns, kinds: NDArray[np.int8]) -> None:
        known = (events.num_workers >= 0) & (kinds != _STEP)
        if known.any():
            last = float(events.start_us[known].max())
            known &= events.start_us == last
            settings = zip(events.num_workers[known].tolist(), events.pin_memory[known].tolist(), strict=True)
            self._loader = max(self._loader, *((last, *one) for one in settings))

    def _add(
        self, node: str, at_us: int, events: _LoopEvents, kinds: NDArray[np.int8], modes: NDArray[np.int8]
    ) -> None:
        overhead = kinds == _OVERHEAD
        if overhead.any():
            self._overhead[node] = self._overhead.get(node, 0.0) + float(events.duration_us[overhead].sum())
        is_step = kinds == _STEP
        found = events.pid[is_step]
        found = found[:1] if (found == found[:1]).all() else np.unique(found)  # one of each process, as a rule
        self._pids.setdefault(node, set()).update(int(pid) for pid in found if pid >= 0)
        loop = ~overhead & (events.worker_id < 0) | is_step | (kinds == column(LOADER))
        loop &= ~overhead
        if not loop.any():
            return
        if not loop.all():
            events, kinds, modes = events[loop], kinds[loop], modes[loop]
        chunk = _chunk(events, kinds, modes)
        key = node, at_us
        old = self._chunks.get(key)
        self._chunks[key] = chunk if old is None else _joined([old, chunk])
        self._held += len(chunk.rows)

    def merge(self, other: StepFold) -> None:
        """Add the steps of a fold of other minutes or nodes."""
        for key, chunk in other._chunks.items():
            self._chunks[key] = _joined([self._chunks[key], chunk]) if key in self._chunks else chunk
        for node, spent in other._overhead.items():
            self._overhead[node] = self._overhead.get(node, 0.0) + spent
        for node, pids in other._pids.items():
            self._pids.setdefault(node, set()).update(pids)
        self._loader = max(self._loader, other._loader)
        for node, level in other._levels.items():
            self._levels[node] = max(level, self._levels.get(node, 0))
        self._held += other._held
        self._bound()

    def join(self) -> None:
        """Join what is held of each process, for a fold that is copied again and again while it grows."""
        self._join()

    def _bound(self) -> None:
        if self._held > self._room:
            self._thin(self._join())
            self._room = max(MAX_STEPS, self._held) * 3 // 2

    def _join(self) -> dict[str, tuple[str, int]]:
        """Join the chunks of each process; return process → key of its chunk."""
        by_node: dict[str, list[tuple[str, int]]] = {}
        for key in sorted(self._chunks):
            by_node.setdefault(key[0], []).append(key)
        for keys in by_node.values():
            self._chunks[keys[0]] = _joined([self._chunks.pop(key) for key in keys])
        return {node: keys[0] for node, keys in by_node.items()}

    def _thin(self, keys: dict[str, tuple[str, int]]) -> None:
        """Leave out steps of the processes that have more than their share."""
        found = {node: self._chunks[key] for node, key in keys.items() if len(self._chunks[key].rows)}
        limit = limit_of(len(found))
        for node, chunk in found.items():
            level = level_of(chunk.rows.start, chunk.stretch, self._levels.get(node, 0), limit)
            if level or chunk.sample is not None:
                self._levels[node] = level
                self._chunks[keys[node]] = chunk.thinned(level, limit)
        self._held = sum(len(self._chunks[key].rows) for key in keys.values())

    def _equalize(self, keys: dict[str, tuple[str, int]]) -> None:
        """Give processes with about as many steps the same level, so that they can be compared step by step."""
        levels = [self._levels.get(node, 0) for node in keys if len(self._chunks[keys[node]].rows)]
        common = common_level(levels) if levels else 0
        for node, key in keys.items():
            if common and self._levels.get(node, 0) == common - 1 and len(self._chunks[key].rows):
                self._levels[node] = common
                self._chunks[key] = self._chunks[key].thinned(common, MAX_STEPS)

    def depends_on_order(self) -> bool:
        """Return whether other steps are kept if nodes are merged later: some are left out, and others came late."""
        late = any(self._chunks[key].late for key in self._join().values())
        return late and (self._held > MAX_STEPS or bool(self._levels))

    def result(self) -> StepSummary:
        """Return all steps so far, each process in time order; from then on the fold holds the same arrays."""
        keys = self._join()
        if self._held > MAX_STEPS or self._levels:
            self._thin(keys)
            self._equalize(keys)
        joined = {node: self._chunks[key] for node, key in keys.items()}
        found = {
            node: judged(chunk.rows, chunk.sample, self._levels[node])
            for node, chunk in joined.items()
            if chunk.sample is not None
        }
        steps = {
            node: chunk.rows if node in found else spread_results(chunk.rows)
            for node, chunk in joined.items()
            if len(chunk.rows)
        }
        return StepSummary(
            steps,
            {node: (joined[node].first_us, joined[node].last_us) for node in steps},
            LoaderSettings(*self._loader[1:]),
            dict(sorted(self._overhead.items())),
            {node: len(pids) for node, pids in sorted(self._pids.items())},
            {node: joined[node].declared for node in steps if joined[node].declared},
            {node: joined[node].collected for node in steps if joined[node].collected},
            found,
        )


_STEP, _OVERHEAD, _OWN, _DECLARED, _IGNORED = 100, 101, 102, 103, -1
_BEGINNINGS = {event_names.STEP: _STEP, event_names.OVERHEAD: _OVERHEAD, event_names.PROFILING: _OWN}
_OTHER_COLUMNS = {
    event_names.GARBAGE_COLLECTION: GC, event_names.DATALOADER_ITER: LOADER,
    event_names.RESULTS: RESULTS, event_names.QUEUED: QUEUED,
}  # fmt: skip


def classify(events: EventColumns) -> NDArray[np.int8]:
    """Return for each event the column of its part, _STEP, _OVERHEAD, or _IGNORED; each text is classified once."""
    by_phase = np.asarray([_kind_of_phase(text) for text in events.phase.values] or [_IGNORED], np.int8)
    by_name = np.asarray([_kind_of_name(text) for text in events.name.values] or [_IGNORED], np.int8)
    kinds = by_phase[events.phase.codes]
    named = by_name[events.name.codes]
    kinds = np.where(kinds == _IGNORED, named, kinds).astype(np.int8)
    open_rows = np.flatnonzero((kinds == _IGNORED) | (kinds == _OWN) | (kinds == column(GC)))
    kinds[open_rows] = _by_arguments(events[open_rows], kinds[open_rows])
    return kinds


def _by_arguments(events: EventColumns, kinds: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return the kinds of events that depend on their arguments, as the hook writes them."""
    codes, each = np.unique(events.args.codes, return_inverse=True)
    texts = [events.args.values[code].replace(": ", ":") for code in codes]
    stall, own, declared = (
        np.asarray([mark in text for text in texts], np.bool_)[each]
        for mark in ('"kind":"stall"', '"own":true', '"declared":true')
    )
    kinds = np.where((kinds == _OWN) & ~stall, _IGNORED, kinds)
    kinds = np.where((kinds == column(GC)) & own, _OWN, kinds)
    return np.where((kinds == _IGNORED) & declared, _DECLARED, kinds).astype(np.int8)


def _kind_of_phase(phase: str) -> int:
    for part in parts.recorded():
        if part.records(phase):
            return column(part.key)
        if phase and phase == part.device_event:
            return column(part.key, on_device=True)
    if phase in _OTHER_COLUMNS:
        return column(_OTHER_COLUMNS[phase])
    for start, kind in _BEGINNINGS.items():
        if phase.startswith(start):
            return kind
    return column(COMMUNICATION) if phase.lower().startswith(event_names.NCCL_MANAGER.lower()) else _IGNORED


def _kind_of_name(name: str) -> int:
    if name.startswith(event_names.STEP):
        return _STEP
    if name.endswith(event_names.TENSORFLOW_GET_NEXT):
        return column(LOADER)
    low = name.lower()
    return column(COMMUNICATION) if any(word in low for word in _COLLECTIVES) else _IGNORED


def _chunk(events: _LoopEvents, kinds: NDArray[np.int8], modes: NDArray[np.int8]) -> _Chunk:
    order = np.argsort(events.start_us, kind="stable")
    events, kinds = events[order], kinds[order]
    is_step = kinds == _STEP
    modes = modes[order][is_step]
    steps, others, kinds = events[is_step], events[~is_step], kinds[~is_step]
    count = len(steps)
    padded = np.zeros((count + 2, len(columns())))  # first and last row: steps of the neighbouring windows
    is_own, is_declared = kinds == _OWN, kinds == _DECLARED
    own, declared = others[is_own], others[is_declared]
    others, kinds = others[~is_own & ~is_declared], kinds[~is_own & ~is_declared]
    ahead = np.isin(kinds, (column("wait"), column(LOADER)))
    # a phase belongs to the last step started before it, a wait to the next one started after it
    row = np.searchsorted(steps.start_us, others.start_us + np.where(ahead, 0.0, 0.5), side="right")
    row = np.where(ahead, np.searchsorted(steps.start_us, others.start_us, side="right") + 1, row)
    # a collection belongs to the iteration it interrupts: to the first step that ends after it
    collected = kinds == column(GC)
    holder = np.searchsorted(steps.end_us, others.start_us, side="right") + 1
    begun = count > 0 and others.start_us >= (steps.start_us[0] if count else 0)
    row = np.where(collected, np.where(begun, holder, 0), row)
    late = kinds > column(COMMUNICATION)  # a GPU runs behind the host, which may be some steps ahead
    row[late] = _rows_by_number(steps, others[late])
    of_loop = ~collected  # imports collect garbage long before the loop
    edges = (steps.start_us, steps.end_us, others.start_us[of_loop], others.end_us[of_loop])
    first = min((float(one.min()) for one in edges if len(one)), default=np.inf)
    last = max((float(one.max()) for one in edges if len(one)), default=-np.inf)
    by_profiler = Covered.by(own.start_us, own.end_us)
    begin = _counted_once(others, kinds)
    times = others.end_us - begin - np.where(late, 0.0, by_profiler.within(begin, others.end_us))
    np.add.at(padded, (row, kinds), np.maximum(times, 0.0))
    padded[:, column("compiled")] += padded[:, column(RESULTS)] + padded[:, column(QUEUED)]
    _add_own(padded, by_profiler, steps, first)
    found = _add_declared(padded, declared, by_profiler, steps, others[np.isin(kinds, _recorded_columns())])
    gc_in_wait = _overlap_with_waits(others, kinds, steps.start_us)
    rows = StepRows(
        steps.start_us, steps.duration_us, steps.step, modes, PartTable.of(padded[1:-1]), gc_in_wait[1 : count + 1]
    )
    evaluated = collected & ((np.append(modes, TRAIN)[np.minimum(row, count) - 1] != TRAIN) & (row > 0))
    inside = _collected_in(others, kinds, (declared, steps), collected & (row > 0) & ~evaluated)
    if evaluated.any():
        inside["evaluation"] = float(times[evaluated].sum())
    return _Chunk(
        rows,
        padded[0].copy(),
        padded[-1].copy(),
        first,
        last,
        found,
        inside,
        np.full(count, stretch_of(count), np.int8),
    )


def _counted_once(events: _LoopEvents, kinds: NDArray[np.int8]) -> Floats:
    """Return from where on each event counts: what overlaps on one thread is the same time, and belongs to the earlier."""
    begin = events.start_us.astype(np.float64)
    for group in (_recorded_columns(), [column(GC)], [column(COMMUNICATION)]):
        rows = np.flatnonzero(np.isin(kinds, group))
        begin[rows] = not_covered_before(events.start_us[rows], events.end_us[rows])
    return begin


def _collected_in(
    others: _LoopEvents, kinds: NDArray[np.int8], frames: tuple[_LoopEvents, _LoopEvents], rows: NDArray[np.bool_]
) -> dict[str, float]:
    """Return the garbage collections by the part of the loop that they interrupt.

    Args:
        others: events that are no steps, in time order.
        kinds: the column of each.
        frames: the script's own phases, and the steps.
        rows: the collections.
    """
    if not rows.any():
        return {}
    start, end = others.start_us[rows], others.end_us[rows]
    left, found = end - start, dict[str, float]()
    spans = [(part.key, others[kinds == column(part.key)]) for part in parts.recorded() if part.key != parts.DECLARED]
    for key, events in (*spans, (parts.DECLARED, frames[0]), ("between", frames[1])):
        inside = np.minimum(Covered.by(events.start_us, events.end_us).within(start, end), left)
        left = left - inside
        found[key] = float(inside.sum())
    found["outside"] = float(left.sum())
    return {key: spent for key, spent in found.items() if spent > 0}


@cache
def _recorded_columns() -> list[int]:
    return [column(part.key) for part in parts.recorded() if part.kind is not parts.Kind.DECLARED]


def _add_own(padded: Floats, by_profiler: Covered, steps: _LoopEvents, first: float) -> None:
    """Add the profiler's own work to each iteration, which is the time from the end of a step to the end of the next."""
    if not len(steps):
        return
    edges = np.concatenate([[first], steps.end_us, [np.inf]])
    padded[1:, column(OWN)] += by_profiler.within(edges[:-1], edges[1:])
    padded[1:-1, column(OWN_IN_STEP)] += by_profiler.within(steps.start_us, steps.end_us)


def _add_declared(
    padded: Floats, declared: _LoopEvents, by_profiler: Covered, steps: _LoopEvents, recorded: _LoopEvents
) -> dict[str, float]:
    """Add the script's own phases to their iterations, without the recorded parts inside them; return name → time.

    A phase around a whole step is a frame for the others and no activity of its own.
    """
    if not len(declared) or not len(steps):
        return {}
    declared = declared[~contains_any(declared.start_us, declared.end_us, (steps.start_us, steps.end_us))]
    if not len(declared):
        return {}
    start, end = declared.start_us, declared.end_us
    in_parts = Covered.by(recorded.start_us, recorded.end_us)
    times = without_inner(start, end) - in_parts.within(start, end) - by_profiler.within(start, end)
    times = np.maximum(times, 0.0)
    row = np.searchsorted(steps.end_us, start, side="right") + 1
    row = np.where(start >= min(float(steps.start_us[0]), float(recorded.start_us.min(initial=np.inf))), row, 0)
    inside = start >= np.append(steps.start_us, np.inf)[np.maximum(row - 1, 0)]
    padded[:, column(parts.DECLARED)] += np.bincount(row, times, len(padded))
    padded[:, column(DECLARED_IN_STEP)] += np.bincount(row, times * inside, len(padded))
    trained = np.append(_modes(steps) == TRAIN, True)[np.maximum(row - 1, 0)] & (row > 0)
    codes, each = np.unique(declared.phase.codes[trained], return_inverse=True)
    spent = np.bincount(each, times[trained], len(codes)).tolist()
    return {declared.phase.values[code]: one for code, one in zip(codes, spent, strict=True) if one > 0}


def _rows_by_number(steps: _LoopEvents, events: _LoopEvents) -> NDArray[np.intp]:
    """Return the padded row of the step with each event's number; of several (one per mode) the last one started."""
    if not len(steps) or not len(events):
        return np.zeros(len(events), np.intp)

    def keys(of: _LoopEvents) -> Ints:  # number, then time; 34 bits of µs hold more hours than a window
        since = np.clip(of.start_us - steps.start_us[0], 0, (1 << 34) - 1).astype(np.int64)
        found: Ints = (of.step << 34) + since
        return found

    known = keys(steps)
    order = np.argsort(known, kind="stable")
    at = order[np.maximum(np.searchsorted(known[order], keys(events), side="right") - 1, 0)]
    return np.where((steps.step[at] == events.step) & (steps.start_us[at] <= events.start_us), at + 1, 0)


def _overlap_with_waits(others: _LoopEvents, kinds: NDArray[np.int8], step_starts: Floats) -> Floats:
    """Return the collections inside waits, summed by the padded row of the step that waited."""
    found = np.zeros(len(step_starts) + 2)
    waits, collections = others[kinds == column("wait")], others[kinds == column(GC)]
    if not len(waits) or not len(collections):
        return found
    holder = np.searchsorted(waits.start_us, collections.start_us, side="right") - 1
    inside = (holder >= 0) & (collections.start_us < waits.end_us[np.maximum(holder, 0)])
    row = np.searchsorted(step_starts, collections.start_us[inside], side="right") + 1
    np.add.at(found, row, collections.duration_us[inside])
    return found


def _modes(events: EventColumns | _LoopEvents) -> NDArray[np.int8]:
    def of(text: str) -> int:
        mode = text.partition(f"{event_names.STEP}.")[2]
        return MODES.index(mode) if mode in MODES else 0

    names: Category = events.name
    return np.asarray([of(text) for text in names.values] or [0], np.int8)[names.codes]


def _joined(chunks: list[_Chunk]) -> _Chunk:
    """Join chunks of one process in time order; times beyond a window's edge are added to their step."""
    edges = np.flatnonzero(np.any([edge != 0 for chunk in chunks for edge in (chunk.before, chunk.after)], axis=0))
    table = PartTable.concat([PartTable.of(chunk.rows.parts) for chunk in chunks], map(int, edges))
    before, after = chunks[0].before.copy(), np.zeros(len(columns()))
    end = 0  # of the rows so far
    for index, chunk in enumerate(chunks):
        if index and end:
            table.add(end - 1, chunk.before)
        elif index:
            before += chunk.before
        if len(chunk.rows):
            table.add(end, after)
            after = chunk.after.copy()
            end += len(chunk.rows)
        else:
            after = after + chunk.after

    def column(name: str) -> Any:
        return np.concatenate([getattr(chunk.rows, name) for chunk in chunks])

    rows = StepRows(
        column("start"),
        column("duration"),
        column("number"),
        column("mode"),
        table,
        column("gc_in_wait"),
    )
    stretch, sample = np.concatenate([chunk.stretch for chunk in chunks]), None
    if any(chunk.sample is not None for chunk in chunks):
        filled = [chunk for chunk in chunks if len(chunk.rows)]
        sample = StepSample.joined([one.sampled for one in filled], rows)
    late = bool(np.any(np.diff(rows.start) < 0))
    if late:
        order = np.argsort(rows.start, kind="stable")
        rows, stretch = rows[order], stretch[order]
        sample = sample.sorted(order) if sample is not None else None
    declared, collected = _summed([one.declared for one in chunks]), _summed([one.collected for one in chunks])
    first_us, last_us = min(chunk.first_us for chunk in chunks), max(chunk.last_us for chunk in chunks)
    late = late or any(chunk.late for chunk in chunks)
    return _Chunk(rows, before, after, first_us, last_us, declared, collected, stretch, sample, late)


def _summed(each: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in each:
        for name, spent in one.items():
            total[name] = total.get(name, 0.0) + spent
    return total


def each_process(found: StepSummary) -> Iterator[tuple[str, StepRows]]:
    """Yield the processes and their steps in natural order: algo-2 before algo-10, rank 9 before rank 10."""
    yield from sorted(found.steps.items(), key=lambda item: natural_key(item[0]))
