"""The training loop as one row a step: how long each waited, computed and did neither."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats import event_names
from sm_profiler.formats.columns import Category, EventColumns, Floats, Ints

MODES = ("TRAIN", "EVAL", "PREDICT", "GLOBAL")
TRAIN, EVAL = MODES.index("TRAIN"), MODES.index("EVAL")  # as StepRows.mode has them
WAIT, FORWARD, BACKWARD, OPTIMIZER, GC, LOADER, COMMUNICATION = range(7)  # the columns of StepRows.parts
DEVICE_FORWARD, DEVICE_BACKWARD, DEVICE_OPTIMIZER = range(7, 10)  # the same phases, as a GPU ran them
PARTS = 10
_COMMUNICATION = ("nccl", "allreduce", "all_reduce", "allgather", "reducescatter", "reduce_scatter", "broadcast")


class SeesEvents(Protocol):
    """The part of a window that this fold reads (the engine's Window): the events that count in it, each once."""

    @property
    def start_us(self) -> int:
        """Where the window starts, microseconds since the epoch."""

    @property
    def new_events(self) -> EventColumns:
        """Events."""


@attrs.frozen(eq=False)
class StepRows:
    """The steps of one process in time order; all times in microseconds.

    Attributes:
        start: start of each step's first phase, float64, since the epoch.
        duration: of the Step event itself.
        number: the step's number within its mode, -1 where unknown.
        mode: index into MODES.
        parts: shape (steps, PARTS): time in each part, in the order WAIT, FORWARD, BACKWARD, OPTIMIZER, GC, LOADER,
            COMMUNICATION, DEVICE_FORWARD, DEVICE_BACKWARD, DEVICE_OPTIMIZER.  WAIT and LOADER belong to the step whose batch they brought.
        gc_in_wait: collections that fell into the wait.
    """

    start: Floats
    duration: Floats
    number: Ints
    mode: NDArray[np.int8]
    parts: Floats
    gc_in_wait: Floats

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> Floats:
        """Where each Step event ends."""
        return self.start + self.duration

    @classmethod
    def empty(cls) -> StepRows:
        """No steps."""
        none = np.empty(0)
        return cls(none, none, np.empty(0, np.int64), np.empty(0, np.int8), np.empty((0, PARTS)), none)


@attrs.define(eq=False)
class _Chunk:
    """The steps of one process and window, with what belongs to a neighbouring window's step."""

    rows: StepRows
    before: Floats  # shape (PARTS,): phases of the last step of the window before
    after: Floats  # shape (PARTS,): waits for a step of the next window
    first_us: float  # earliest event of the loop
    last_us: float


@attrs.frozen(eq=False)
class Loader:
    """What the data loader said of itself; -1 where unknown."""

    num_workers: int = -1
    pin_memory: int = -1


@attrs.frozen(eq=False)
class StepFacts:
    """The result: process (`algo-1-0`) → its steps, and what else the events told."""

    steps: dict[str, StepRows]
    loop: dict[str, tuple[float, float]]  # first and last moment of the loop, µs
    loader: Loader
    overhead_us: dict[str, float]  # the hook's own time by process
    pids: dict[str, int]  # number of processes seen under one name: more than one means it was restarted
    operators: bool  # whether single operators were recorded


class StepFold:
    """Collects steps window by window; partial folds of other minutes or nodes merge.  Memory: 120 bytes a step."""

    def __init__(self) -> None:
        self._chunks: dict[tuple[str, int], _Chunk] = {}
        self._overhead: dict[str, float] = {}
        self._pids: dict[str, set[int]] = {}
        self._loader = Loader()
        self._operators = False

    def update(self, window: SeesEvents) -> None:
        """Take the events of one window."""
        events = window.new_events
        if not len(events):
            return
        kinds = classify(events)
        self._remember_loader(events, kinds)
        keep = kinds != _IGNORED
        if not keep.any():
            return
        kept, kinds = events[keep], kinds[keep]
        for code in np.unique(kept.node.codes):
            of_node = kept.node.codes == code
            self._add(kept.node.values[code], window.start_us, kept[of_node], kinds[of_node])

    def _remember_loader(self, events: EventColumns, kinds: NDArray[np.int8]) -> None:
        known = (events.num_workers >= 0) & (kinds != _STEP)
        if known.any():
            row = int(np.flatnonzero(known)[-1])
            self._loader = Loader(int(events.num_workers[row]), int(events.pin_memory[row]))
        self._operators = self._operators or bool(
            events.phase.mask(lambda text: text == event_names.CPU_OPERATORS).any()
        )

    def _add(self, node: str, at_us: int, events: EventColumns, kinds: NDArray[np.int8]) -> None:
        overhead = kinds == _OVERHEAD
        if overhead.any():
            self._overhead[node] = self._overhead.get(node, 0.0) + float(events.duration_us[overhead].sum())
        is_step = kinds == _STEP
        self._pids.setdefault(node, set()).update(int(pid) for pid in np.unique(events.pid[is_step]) if pid >= 0)
        loop = ~overhead & (events.worker_id < 0) | is_step | (kinds == LOADER)
        if not (loop & ~overhead).any():
            return
        chunk = _chunk(events[loop & ~overhead], kinds[loop & ~overhead])
        key = node, at_us
        old = self._chunks.get(key)
        self._chunks[key] = chunk if old is None else _joined([old, chunk])

    def merge(self, other: StepFold) -> None:
        """Take over what another fold saw of other minutes or nodes."""
        for key, chunk in other._chunks.items():
            self._chunks[key] = _joined([self._chunks[key], chunk]) if key in self._chunks else chunk
        for node, spent in other._overhead.items():
            self._overhead[node] = self._overhead.get(node, 0.0) + spent
        for node, pids in other._pids.items():
            self._pids.setdefault(node, set()).update(pids)
        self._loader = other._loader if other._loader.num_workers >= 0 else self._loader
        self._operators |= other._operators

    def result(self) -> StepFacts:
        """Everything seen so far, each process in time order."""
        by_node: dict[str, list[_Chunk]] = {}
        for node, at_us in sorted(self._chunks):
            by_node.setdefault(node, []).append(self._chunks[node, at_us])
        joined = {node: _joined(chunks) for node, chunks in by_node.items()}
        steps = {node: chunk.rows for node, chunk in joined.items() if len(chunk.rows)}
        return StepFacts(
            steps,
            {node: (joined[node].first_us, joined[node].last_us) for node in steps},
            self._loader,
            dict(self._overhead),
            {node: len(pids) for node, pids in self._pids.items()},
            self._operators,
        )


_STEP, _OVERHEAD, _IGNORED = 100, 101, -1


_PHASES = {
    event_names.DATALOADER_WAIT: WAIT,
    event_names.FORWARD: FORWARD,
    event_names.OPTIMIZER: OPTIMIZER,
    event_names.GARBAGE_COLLECTION: GC,
    event_names.DATALOADER_ITER: LOADER,
    event_names.DEVICE_FORWARD: DEVICE_FORWARD,
    event_names.DEVICE_BACKWARD: DEVICE_BACKWARD,
    event_names.DEVICE_OPTIMIZER: DEVICE_OPTIMIZER,
}


def classify(events: EventColumns) -> NDArray[np.int8]:
    """Which part of a step each event is; -1 for what this fold does not use.  Asked once a text, not once a row."""
    by_phase = np.asarray([_kind_of_phase(text) for text in events.phase.values] or [_IGNORED], np.int8)
    by_name = np.asarray([_kind_of_name(text) for text in events.name.values] or [_IGNORED], np.int8)
    kinds = by_phase[events.phase.codes]
    named = by_name[events.name.codes]
    return np.where(kinds == _IGNORED, named, kinds).astype(np.int8)


def _kind_of_phase(phase: str) -> int:
    if phase in _PHASES:
        return _PHASES[phase]
    if phase.startswith("Backward") and "SubModule" not in phase:
        return BACKWARD
    if phase.startswith(event_names.STEP):
        return _STEP
    if phase.startswith(event_names.OVERHEAD):
        return _OVERHEAD
    if phase.lower().startswith(event_names.NCCL_MANAGER.lower()):
        return COMMUNICATION
    return _IGNORED


def _kind_of_name(name: str) -> int:
    if name.startswith(event_names.STEP):
        return _STEP
    if name.endswith(event_names.TENSORFLOW_GET_NEXT):
        return LOADER
    low = name.lower()
    return COMMUNICATION if any(word in low for word in _COMMUNICATION) else _IGNORED


def _chunk(events: EventColumns, kinds: NDArray[np.int8]) -> _Chunk:
    order = np.argsort(events.start_us, kind="stable")
    events, kinds = events[order], kinds[order]
    is_step = kinds == _STEP
    steps, others, kinds = events[is_step], events[~is_step], kinds[~is_step]
    count = len(steps)
    padded = np.zeros((count + 2, PARTS))  # row 0: the step of the window before, last row: of the next
    ahead = np.isin(kinds, (WAIT, LOADER))
    # a phase belongs to the last step that began before it, a wait to the next one that begins after it
    row = np.searchsorted(steps.start_us, others.start_us + np.where(ahead, 0.0, 0.5), side="right")
    row = np.where(ahead, np.searchsorted(steps.start_us, others.start_us, side="right") + 1, row)
    late = kinds >= DEVICE_FORWARD  # a device runs behind: the host may be some steps further
    row[late] = _rows_by_number(steps, others[late])
    np.add.at(padded, (row, kinds), others.duration_us)
    gc_in_wait = _overlap_with_waits(others, kinds, steps.start_us)
    rows = StepRows(
        steps.start_us, steps.duration_us, steps.step, _modes(steps), padded[1:-1], gc_in_wait[1 : count + 1]
    )
    return _Chunk(rows, padded[0], padded[-1], float(events.start_us[0]), float(events.end_us.max()))


def _rows_by_number(steps: EventColumns, events: EventColumns) -> NDArray[np.intp]:
    """The padded row of the step of each event's own number; of several (modes count by themselves) the last begun."""
    if not len(steps) or not len(events):
        return np.zeros(len(events), np.intp)

    def keys(of: EventColumns) -> Ints:  # number, then time; a window is shorter than the hours that 34 bits hold
        since = np.clip(of.start_us - steps.start_us[0], 0, (1 << 34) - 1).astype(np.int64)
        found: Ints = (of.step << 34) + since
        return found

    known = keys(steps)
    order = np.argsort(known, kind="stable")
    at = order[np.maximum(np.searchsorted(known[order], keys(events), side="right") - 1, 0)]
    return np.where((steps.step[at] == events.step) & (steps.start_us[at] <= events.start_us), at + 1, 0)


def _overlap_with_waits(others: EventColumns, kinds: NDArray[np.int8], step_starts: Floats) -> Floats:
    """Collections that ran inside a wait, summed by the padded row of the step that was waited for."""
    found = np.zeros(len(step_starts) + 2)
    waits, collections = others[kinds == WAIT], others[kinds == GC]
    if not len(waits) or not len(collections):
        return found
    holder = np.searchsorted(waits.start_us, collections.start_us, side="right") - 1
    inside = (holder >= 0) & (collections.start_us < waits.end_us[np.maximum(holder, 0)])
    row = np.searchsorted(step_starts, collections.start_us[inside], side="right") + 1
    np.add.at(found, row, collections.duration_us[inside])
    return found


def _modes(steps: EventColumns) -> NDArray[np.int8]:
    def of(text: str) -> int:
        mode = text.partition(f"{event_names.STEP}.")[2]
        return MODES.index(mode) if mode in MODES else 0

    names: Category = steps.name
    return np.asarray([of(text) for text in names.values] or [0], np.int8)[names.codes]


def _joined(chunks: list[_Chunk]) -> _Chunk:
    """Chunks of one process in time order as one; what hung over a window's edge finds its step."""
    parts = [chunk.rows.parts.copy() for chunk in chunks]
    before, after = chunks[0].before.copy(), np.zeros(PARTS)
    last: tuple[int, int] | None = None  # chunk and row of the latest step so far
    for index, chunk in enumerate(chunks):
        if index:
            target = parts[last[0]][last[1]] if last else before
            target += chunk.before
        if len(chunk.rows):
            parts[index][0] += after
            after = chunk.after.copy()
            last = index, len(chunk.rows) - 1
        else:
            after = after + chunk.after

    def column(name: str) -> Any:
        return np.concatenate([getattr(chunk.rows, name) for chunk in chunks])

    rows = StepRows(
        column("start"),
        column("duration"),
        column("number"),
        column("mode"),
        np.concatenate(parts),
        column("gc_in_wait"),
    )
    if np.any(np.diff(rows.start) < 0):  # a file came late
        order = np.argsort(rows.start, kind="stable")
        rows = StepRows(*(getattr(rows, field.name)[order] for field in attrs.fields(StepRows)))
    first = min(chunk.first_us for chunk in chunks)
    return _Chunk(rows, before, after, first, max(chunk.last_us for chunk in chunks))


def each_process(found: StepFacts) -> Iterator[tuple[str, Any]]:
    """Processes in a natural order: algo-2 before algo-10, rank 9 before rank 10."""

    def key(item: tuple[str, Any]) -> tuple[Any, ...]:
        return tuple((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in item[0].split("-"))

    yield from sorted(found.steps.items(), key=key)
