"""Write a timeline for Perfetto and chrome://tracing piece by piece.

Each process of the job is a process of the trace, and its lanes are threads: the loop with its steps and phases, modules,
data loading, each worker, operators by thread and device, communication. Each node has counters. Slices of a thread
nest; those that would cross are moved to another lane.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import attrs
import numpy as np

from sm_profiler.errors import SourceError
from sm_profiler.formats import event_names
from sm_profiler.formats.columns import Category, EventColumns, Floats, Ints, Mask, Numbering, SystemColumns
from sm_profiler.formatting import clean, shorten
from sm_profiler.timeline.trace_json import Announce, Arguments, CounterRows, JsonTrace, SliceRows, distinct

LOOP, FORWARD_MODULES, BACKWARD_MODULES, LOADER, COMMUNICATION, OWN = (
    "loop",
    "modules, forward",
    "modules, backward",
    "data loading",
    "communication",
    "profiler",
)
MAX_LANES = 64  # of one name; more overlapping events than this are counted, not written
_FAR = 1 << 62  # nanoseconds, beyond any time
_DEEPEST = 100  # slices within each other that are checked together
_ROUNDS = 8  # slices of a stretch without a gap that may cross, before its lane is filled one by one


@attrs.define
class Lane:
    """Slices of one thread; `stack` contains the ends of the open ones.

    Attributes:
        thread: its number in the process.
        track: its number in the timeline.
    """

    thread: int
    track: int
    stack: list[float] = attrs.field(factory=list)
    last_start: float = -np.inf

    def takes(self, start: float, end: float) -> bool:
        """Add a slice if it nests here; return whether it does."""
        if start < self.last_start:  # arrived late: it may cross slices that are already closed
            return False
        while self.stack and self.stack[-1] <= start:
            self.stack.pop()
        if self.stack and end > self.stack[-1]:
            return False
        self.stack.append(end)
        self.last_start = start
        return True


@attrs.define
class Process:
    """A process of the timeline: its number and its lanes by name."""

    number: int
    lanes: dict[str, list[Lane]] = attrs.field(factory=dict)
    threads: int = 0


class Lanes:
    """The processes and lanes of a timeline.

    Attributes:
        processes: by name.
        tracks: process and thread of each lane.
    """

    def __init__(self, sink: JsonTrace) -> None:
        self._sink = sink
        self.processes: dict[str, Process] = {}
        self.tracks: list[tuple[int, int]] = []
        self._unnamed: list[Announce] = []

    def process(self, name: str, *, order: int = 0) -> Process:
        found = self.processes.get(name)
        if found is None:
            found = self.processes[name] = Process(len(self.processes) + 1)
            shown = shorten(name, 200), order or found.number
            self._unnamed.append(partial(self._sink.name_process, found.number, *shown))
        return found

    def names(self) -> list[Announce]:
        """Return what names the processes and lanes that are new since the last call."""
        found, self._unnamed = self._unnamed, []
        return found

    def lane(self, process: Process, name: str, start: float, end: float, *, after: int = 0) -> Lane | None:
        """Return the lane that takes a slice, after the first ones; None if too many others overlap with it."""
        lanes = process.lanes.get(name, [])
        for lane in lanes[after:]:
            if lane.takes(start, end):
                return lane
        if len(lanes) >= MAX_LANES:
            return None
        fresh = self._add(process, name)
        fresh.takes(start, end)
        return fresh

    def _add(self, process: Process, name: str) -> Lane:
        lanes = process.lanes.setdefault(name, [])
        process.threads += 1
        fresh = Lane(process.threads, len(self.tracks))
        lanes.append(fresh)
        self.tracks.append((process.number, fresh.thread))
        label = name if len(lanes) == 1 else f"{name} ({len(lanes)})"
        shown = shorten(label, 200), _order(name) * 1000 + len(lanes)
        self._unnamed.append(partial(self._sink.name_thread, process.number, fresh.thread, *shown))
        return fresh

    def place(
        self, kinds: Sequence[tuple[str, str]], kind: Ints, start: Ints, end: Ints
    ) -> tuple[Ints, dict[int, list[Announce]]]:
        """Do for many slices, sorted by start, what `lane` does for one.

        What the first lane of a kind takes is found for all slices at once. The others are placed one by one, and so are
        the kinds of which too many slices cross.

        Args:
            kinds: name of the process and of the lane; each only once.
            kind: index into `kinds` of each slice.
            start: nanoseconds.
            end: nanoseconds.

        Returns:
            The track of each slice, -1 if too many overlap with it; and row → what names what is new there.
        """
        known = [self._first(*each) for each in kinds]
        together = _Together.of(known, kind, start, end)
        singly = ~together.taken
        for row in together.first_rows.values():
            singly[row] = True
        track = np.empty(len(kind), np.int64)
        named: dict[int, list[Announce]] = {}
        rows = np.flatnonzero(singly)
        for row, number, begin, until, taken in zip(
            *(column.tolist() for column in (rows, kind[rows], start[rows], end[rows], together.taken[rows])),
            strict=True,
        ):
            process = self.process(kinds[number][0])
            lane: Lane | None
            if taken:
                lane = known[number] = self._add(process, kinds[number][1])
            else:
                after = 0 if number in together.unknown else 1
                lane = self.lane(process, kinds[number][1], begin, until, after=after)
            track[row] = -1 if lane is None else lane.track
            if self._unnamed:
                named[row] = self.names()
        for number, (begun, last_start, ends) in together.states.items():
            owner = known[number]
            if owner is not None:
                owner.stack = [end for end in owner.stack if end > begun] + ends
                owner.last_start = max(owner.last_start, last_start)
        tracks = np.array([-1 if lane is None else lane.track for lane in known])
        np.copyto(track, tracks[kind], where=together.taken)
        return track, named

    def _first(self, process: str, lane: str) -> Lane | None:
        found = self.processes.get(process)
        return found.lanes[lane][0] if found is not None and lane in found.lanes else None


@attrs.frozen(eq=False)
class _Together:
    """The slices that the first lanes of their kinds take.

    Attributes:
        taken: True for each of them.
        first_rows: kind without lanes so far → its first slice.
        states: kind → start of the last slice that came, of the last one taken, and the ends of those taken that are open.
        unknown: kinds of which it is not known what the first lane takes.
    """

    taken: Mask
    first_rows: dict[int, int]
    states: dict[int, tuple[int, int, list[float]]]
    unknown: set[int]

    @classmethod
    def of(cls, lanes: Sequence[Lane | None], kind: Ints, start: Ints, end: Ints) -> _Together:
        taken = np.zeros(len(kind), np.bool_)
        latest = np.array([-_FAR if lane is None else round(min(max(lane.last_start, -_FAR), _FAR)) for lane in lanes])
        rows = np.flatnonzero(start >= latest[kind])
        low, high = (int(start[rows].min()), int(end[rows].max()) + 1) if len(rows) else (0, 0)
        span = high - low + 1
        if not len(rows) or span * len(lanes) >= _FAR:
            return cls(taken, {}, {}, set(range(len(lanes))))
        # Slices that are open from before come first in their lane. Lanes follow each other in time, as parts of one.
        held = [
            (number, round(min(max(end, low), high)))
            for number, lane in enumerate(lanes)
            if lane is not None
            for end in lane.stack
        ]
        owner = np.concatenate([np.array([number for number, _ in held], np.int64), kind[rows]])
        order = np.argsort(owner.astype(np.uint16) if len(lanes) <= 1 << 16 else owner, kind="stable")
        owner = owner[order]
        own_time = owner * span - low
        begins = np.concatenate([np.full(len(held), low), start[rows]])[order] + own_time
        ends = np.concatenate([np.array([end for _, end in held], np.int64), end[rows]])[order] + own_time
        refused, unknown = _refused(owner, begins, ends, len(lanes))
        begun = np.full(len(lanes), -_FAR)
        begun[owner] = begins - own_time  # of several, the last one stays
        kept = np.flatnonzero(~refused)
        owner, begins, ends, place = owner[kept], begins[kept], ends[kept], order[kept] - len(held)
        begins -= own_time[kept]
        ends -= own_time[kept]
        is_slice = place >= 0
        taken[rows[place[is_slice]]] = True
        first, last = np.zeros(len(lanes), np.int64), np.full(len(lanes), -_FAR)
        first[owner[::-1]] = np.arange(len(kept))[::-1]
        last[owner[is_slice]] = begins[is_slice]
        came = np.flatnonzero(np.bincount(kind[rows], minlength=len(lanes)))
        states: dict[int, tuple[int, int, list[float]]] = {
            number: (int(begun[number]), int(last[number]), []) for number in came.tolist() if number not in unknown
        }
        for row in np.flatnonzero(is_slice & (ends > begun[owner])).tolist():
            states[int(owner[row])][2].append(int(ends[row]))
        first_rows = {number: int(rows[place[first[number]]]) for number in states if lanes[number] is None}
        return cls(taken, first_rows, states, unknown)


def _refused(owner: Ints, start: Ints, end: Ints, lanes: int) -> tuple[Mask, set[int]]:
    """Return which slices their lane does not take, and the lanes of which all are refused as too many cross."""
    refused = np.zeros(len(owner), np.bool_)
    rows = np.arange(len(owner))
    for _ in range(_ROUNDS):
        crossing = rows[_first_crossing(start[rows], end[rows])]
        if not len(crossing):
            return refused, set()
        refused[crossing] = True
        again = np.zeros(lanes, np.bool_)
        again[owner[crossing]] = True
        rows = rows[again[owner[rows]] & ~refused[rows]]
    refused |= again[owner]
    return refused, set(np.flatnonzero(again).tolist())


def _first_crossing(start: Ints, end: Ints) -> Ints:
    """Return the first slice that crosses an earlier one, of each stretch without a gap.

    What begins when all before it are over is outermost. The others are inside the last outermost one, or cross its end;
    among themselves they are checked in the same way.
    """
    found = np.zeros(len(start), np.bool_)
    stretch = np.zeros(len(start), np.int64)
    rows = np.arange(len(start))
    for depth in range(_DEEPEST):
        begins, ends = start[rows], end[rows]
        latest = np.maximum.accumulate(ends)[:-1]
        inner = begins[1:] < latest
        if not depth:
            stretch[1:] = np.cumsum(~inner)
        rows = rows[1:]
        found[rows[inner & (ends[1:] > latest)]] = True
        rows = rows[inner]
        if not len(rows):
            break
    found[rows] = True
    crossing = np.flatnonzero(found)
    return crossing[np.diff(stretch[crossing], prepend=-1) > 0]


def _order(lane: str) -> int:
    known = (
        LOOP,
        LOADER,
        FORWARD_MODULES,
        BACKWARD_MODULES,
        "operators",
        "host thread",
        "GPU",
        COMMUNICATION,
        "loader worker",
        OWN,
    )
    return next((place for place, name in enumerate(known) if lane.startswith(name)), len(known))


COUNTERS = {
    "CPUUtilization": "CPU use, %", "I/OWaitPercentage": "I/O wait, %", "GPUUtilization": "GPU use, %",
    "GPUMemoryUtilization": "GPU memory, %", "MemoryUsedPercent": "memory, %", "ReceiveBytesPerSecond": "network, bytes/s",
    "TransmitBytesPerSecond": "network, bytes/s", "ReadThroughputInBytesPerSecond": "disk, bytes/s",
    "WriteThroughputInBytesPerSecond": "disk, bytes/s", "IOPS": "disk operations/s",
    "SwapInBytesPerSecond": "swap, bytes/s", "SwapOutBytesPerSecond": "swap, bytes/s",
    "MajorFaultsPerSecond": "major faults/s", "MemoryPressurePercent": "memory pressure, %",
    "IOPressurePercent": "I/O pressure, %",
}  # fmt: skip
SERIES = {
    "ReceiveBytesPerSecond": "received",
    "TransmitBytesPerSecond": "sent",
    "ReadThroughputInBytesPerSecond": "read",
    "WriteThroughputInBytesPerSecond": "written",
    "SwapInBytesPerSecond": "in",
    "SwapOutBytesPerSecond": "out",
}


@attrs.frozen(eq=False)
class Values:
    """Values by time, those of a counter and a moment together.

    Attributes:
        node: measured there.
        name: of the counter.
        series: name of the value.
        at: whole nanoseconds since the timeline's origin, of any size.
        value: finite.
        first: True for the first value of a counter at a moment.
    """

    node: Category
    name: Category
    series: Category
    at: Floats
    value: Floats
    first: Mask

    def name_at(self, row: int) -> str:
        """Return the name of a value's counter."""
        name: str = self.name.values[self.name.codes[row]]
        return name

    def shown(self, begin: int, end: int) -> dict[str, float]:
        """Return some values by the names of their series."""
        return {self.series.values[self.series.codes[row]]: float(self.value[row]) for row in range(begin, end)}


def values_of(system: SystemColumns, origin_us: float) -> Values:
    """Return the values that are shown, in the order in which they are written."""
    titles, series = Numbering(), Numbering()
    by_dimension = _titles(system.dimension, titles)
    title = np.where(by_dimension >= 0, by_dimension, _titles(system.name, titles))
    with np.errstate(over="ignore"):
        at = np.rint((system.timestamp * 1e6 - origin_us) * 1e3)
    wanted = (title >= 0) & np.isfinite(system.value) & np.isfinite(at)
    rows = np.flatnonzero(wanted & ~system.dimension.mask("Platform"))
    shown = [series[SERIES.get(text, shorten(text, 60) or "value")] for text in system.name.values]
    column = np.array(shown, np.int32)[system.name.codes]
    counter = system.node.codes[rows].astype(np.int64) * len(titles) + title[rows]
    order, moment = _by_moment(system.timestamp[rows], counter)
    rows = rows[order]
    values = system.value[rows]
    pairs, first = distinct(moment * len(series) + column[rows], (int(moment.max(initial=0)) + 1) * len(series))
    if len(first) < len(rows):  # of several values of a moment the last one counts, in the place of the first
        last = np.empty(len(first), np.int64)
        last[pairs] = np.arange(len(rows))
        kept = np.sort(first)
        rows, moment, values = rows[kept], moment[kept], values[last[pairs[kept]]]
    names = Category(title[rows].astype(np.int32), tuple(titles))
    begins = np.diff(moment, prepend=-1) > 0
    return Values(system.node[rows], names, Category(column[rows], tuple(series)), at[rows], values, begins)


def _titles(texts: Category, titles: Numbering) -> Ints:
    """Return the number of each row's counter; -1 for what is not shown."""
    numbers = [titles[COUNTERS[text]] if text in COUNTERS else -1 for text in texts.values]
    return np.array(numbers, np.int64)[texts.codes]


def _by_moment(seconds: Floats, counter: Ints) -> tuple[Ints, Ints]:
    """Return the order of values by time and counter, and number the moments of each counter.

    Counters of one time, and the values of a counter, keep their order.
    """
    order = np.lexsort((counter, seconds))
    edges = (np.diff(seconds[order], prepend=np.nan) != 0) | (np.diff(counter[order], prepend=-1) != 0)
    begins = np.flatnonzero(edges)
    counts = np.diff(begins, append=len(order))
    by_appearance = np.lexsort((order[begins], seconds[order[begins]]))
    begins, counts = begins[by_appearance], counts[by_appearance]
    shift = begins - (np.cumsum(counts) - counts)
    return order[np.repeat(shift, counts) + np.arange(len(order))], np.repeat(np.arange(len(counts)), counts)


_ROWS = 1 << 14  # written at once, so that they stay in the processor's cache
_FAR_NS = float(1 << 60)  # times beyond are converted as Python's integers
_BUFFER = 1 << 20
_REMEMBERED = 50_000  # names whose shown form is kept


Describe = Callable[[EventColumns], Sequence[Arguments | None] | None]


@attrs.frozen
class Clock:
    """A process's clock, as its hook measured it.

    Attributes:
        offset_us: microseconds that it is ahead of the common clock.
        error_us: error bound of the offset; None if it was not measured.
    """

    offset_us: float = 0.0
    error_us: float | None = None


def read_clocks(metadata: Iterable[Mapping[str, Any]]) -> dict[str, Clock]:
    """Return the clocks that processes recorded, by node."""
    clocks = {}
    for record in metadata:
        args = record.get("args")
        if isinstance(args, dict):
            offset, error = _time(args.get("clock_offset_us") or 0), _time(args.get("clock_error_us"))
            if offset is not None and error is not None:
                clocks[str(record.get("node", args.get("rank")))] = Clock(offset, error)
    return clocks


def _time(value: object) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1 << 62:
        return float(value)
    return None


@attrs.define
class Export:
    """Summary of a written trace.

    Attributes:
        events: slices, instants and counters.
        processes: processes of the job.
        left_out: slices that overlap with MAX_LANES others, which are not written.
        clock_error_us: process → possible error of its clock, if the hook measured it.
        shift_us: process → what was added to its times, where clocks disagree.
    """

    events: int = 0
    processes: int = 0
    left_out: int = 0
    clock_error_us: dict[str, float] = attrs.field(factory=dict)
    shift_us: dict[str, float] = attrs.field(factory=dict)


class TimelineWriter:
    """Writes a trace with times relative to `origin_us`.

    `describe` returns the arguments of slices, one per event, or None for events that need only their steps, which are
    written many at once.
    """

    def __init__(self, trace: JsonTrace, origin_us: float, describe: Describe | None = None) -> None:
        self._trace = trace
        self._describe = describe or (lambda _: None)
        self.origin_us = origin_us
        self._lanes = Lanes(trace)
        self._shown: dict[str, str] = {}
        self.export = Export()

    def add_slice(  # one argument a field
        self, process: str, lane: str, name: str, category: str, start: int, length: int, args: Arguments, flow: int = 0
    ) -> None:
        """Write a slice to a lane of a process, times in nanoseconds since the origin; those of a lane in their order."""
        found = self._lanes.process(process)
        taken = self._lanes.lane(found, lane, start, start + length)
        for announce in self._lanes.names():
            announce()
        if taken is None:
            self.export.left_out += 1
            return
        self._trace.slice(found.number, taken.thread, name, category, start, length, args, flow)
        self.export.events += 1

    def add_mark(self, process: str, name: str, at: int, args: Arguments) -> None:
        """Mark a moment across all processes."""
        found = self._lanes.process(process)
        for announce in self._lanes.names():
            announce()
        self._trace.mark(found.number, name, at, args)
        self.export.events += 1

    def add_counter(self, process: str, name: str, at: int, values: Arguments) -> None:
        """Write values of a counter from a moment on."""
        found = self._lanes.process(process)
        for announce in self._lanes.names():
            announce()
        self._trace.counter(found.number, name, at, values)
        self.export.events += 1

    def add_events(self, events: EventColumns) -> None:
        """Write trace events, sorted by start, longer ones first."""
        with np.errstate(over="ignore"):
            start = np.rint((events.start_us - self.origin_us) * 1e3)
            length = np.maximum(np.rint(events.duration_us * 1e3), 0)
        order = np.lexsort((-events.duration_us, events.start_us))
        order = order[np.isfinite(start[order]) & np.isfinite(length[order])]
        for at in range(0, len(order), _ROWS):
            rows = order[at : at + _ROWS]
            chosen, begins, lengths = events[rows], start[rows], length[rows]
            described = self._describe(chosen)
            if described is None and np.abs(begins).max() < _FAR_NS and lengths.max() < _FAR_NS:
                self._add_rows(chosen, begins.astype(np.int64), lengths.astype(np.int64))
            else:
                self._add_singly(chosen, begins, lengths, described or [None] * len(chosen))

    def _add_singly(
        self, events: EventColumns, start: Floats, length: Floats, described: Sequence[Arguments | None]
    ) -> None:
        kinds, lanes = _lane_kinds(events)
        names, phases = self._names(events.name), self._categories(events.phase)
        for row, (process, lane) in enumerate(kinds[number] for number in lanes.tolist()):
            name, phase = names.values[names.codes[row]], phases.values[phases.codes[row]]
            step = int(events.step[row])
            args = {**({"step": step} if step >= 0 else {}), **(described[row] or {})}
            self.add_slice(process, lane, name, phase, int(start[row]), int(length[row]), args)

    def _add_rows(self, events: EventColumns, start: Ints, length: Ints) -> None:
        kinds, lanes = _lane_kinds(events)
        track, named = self._lanes.place(kinds, lanes, start, start + length)
        step = events.step
        if (track < 0).any():
            rows = np.flatnonzero(track >= 0)
            self.export.left_out += len(track) - len(rows)
            named = {int(np.searchsorted(rows, row)): names for row, names in named.items()}
            events, track, start, length, step = events[rows], track[rows], start[rows], length[rows], step[rows]
        if not len(track):
            return
        names, phases = self._names(events.name), self._categories(events.phase)
        self._trace.slices(SliceRows(track, self._lanes.tracks, names, phases, start, length, step, named))
        self.export.events += len(track)

    def _names(self, names: Category) -> Category:
        return _only_used(names, self._name)

    def _name(self, text: str) -> str:
        found = self._shown.get(text)
        if found is None:
            if len(self._shown) >= _REMEMBERED:
                self._shown.clear()
            found = self._shown[text] = shorten(text, 300) or "?"
        return found

    def _categories(self, phases: Category) -> Category:
        return _only_used(phases, lambda text: shorten(text, 100) or "event")

    def add_system(self, system: SystemColumns) -> None:
        """Write system metrics as counters of their node."""
        if not len(system):
            return
        found = values_of(system, self.origin_us)
        if not len(found.at):
            return
        node = found.node
        edges = [*np.flatnonzero(found.first).tolist(), len(found.at)]
        self.export.events += len(edges) - 1
        named: dict[int, list[Announce]] = {}
        numbers = np.zeros(len(node.values), np.int64)
        _, appears = distinct(node.codes, len(node.values))
        for row in np.sort(appears).tolist():
            process = self._lanes.process(f"{node.values[node.codes[row]]} system", order=100_000)
            numbers[node.codes[row]] = process.number
            if names := self._lanes.names():
                named[row] = names
        owner = numbers[node.codes]
        if np.abs(found.at).max() >= _FAR_NS:
            for begin, end in itertools.pairwise(edges):
                for announce in named.get(begin, ()):
                    announce()
                self._trace.counter(
                    int(owner[begin]), found.name_at(begin), int(found.at[begin]), found.shown(begin, end)
                )
            return
        at = found.at.astype(np.int64)
        begin = 0
        for end in edges[1:]:
            if end - begin >= _ROWS or end == len(at):
                rows = slice(begin, end)
                here = {row - begin: names for row, names in named.items() if begin <= row < end}
                columns = (
                    owner[rows],
                    found.name[rows],
                    found.series[rows],
                    at[rows],
                    found.value[rows],
                    found.first[rows],
                )
                self._trace.counters(CounterRows(*columns, here))
                begin = end

    def finish(self, metadata: Iterable[Mapping[str, Any]], source: str) -> Export:
        """End the trace with the errors of its clocks."""
        self.export.clock_error_us = {
            node: clock.error_us for node, clock in read_clocks(metadata).items() if clock.error_us is not None
        }
        for name, error in self.export.clock_error_us.items():
            if name in self._lanes.processes:
                self._trace.label_process(self._lanes.processes[name].number, f"clock within {error / 1e3:.3g} ms")
        for name, shift in self.export.shift_us.items():
            self._trace.label_process(self._lanes.processes[name].number, f"shifted by {shift / 1e3:+.3g} ms")
        self.export.processes = len(self._lanes.processes)
        self._trace.close({
            "source": clean(source),
            "start_time_since_epoch_in_micros": round(self.origin_us),
            "clock_error_us": self.export.clock_error_us,
            "clock_shift_us": self.export.shift_us,
            "events_left_out": self.export.left_out,
        })  # fmt: skip
        return self.export


_LANES = {
    event_names.FORWARD_MODULE: FORWARD_MODULES,
    event_names.BACKWARD_MODULE: BACKWARD_MODULES,
    event_names.DATALOADER_ITER: LOADER,
    event_names.DATALOADER_INITIALIZE: LOADER,
    event_names.TENSORFLOW_DATA_ITERATOR: LOADER,
    event_names.NCCL_MANAGER: COMMUNICATION,
}


def _lane_name(phase: str, tid: int, worker: int) -> str:
    if phase.startswith(event_names.DATALOADER_WORKER):
        return f"loader worker {worker}" if worker >= 0 else "loader workers"
    if phase == event_names.CPU_OPERATORS:
        return f"operators, thread {tid}" if tid >= 0 else "operators"
    if phase.startswith(event_names.GPU_OPERATORS):
        return f"GPU {phase.rpartition(':')[2]}"
    if phase.startswith(event_names.OWN):
        return OWN
    return _LANES.get(phase, LOOP)


def _lane_kinds(events: EventColumns) -> tuple[list[tuple[str, str]], Ints]:
    """Return the names of processes and lanes, and the index of each event's pair of them."""
    phase = _only_used(events.phase, clean)
    phases, of_event = phase.values, phase.codes
    by_thread = np.array([text == event_names.CPU_OPERATORS for text in phases])[of_event]
    by_worker = np.array([text.startswith(event_names.DATALOADER_WORKER) for text in phases])[of_event]
    detail = np.where(by_thread, events.tid, np.where(by_worker, events.worker_id, -1))
    details, first = distinct(np.maximum(detail, -1) + 1, min(int(detail.max()) + 2, (1 << 62)))
    mixed = (events.node.codes.astype(np.int64) * len(phases) + of_event) * len(first) + details
    codes, examples = distinct(mixed, len(events.node.values) * len(phases) * len(first))
    numbers = Numbering()
    found = [
        numbers[
            events.node.values[events.node.codes[row]],
            _lane_name(phases[of_event[row]], int(events.tid[row]), int(events.worker_id[row])),
        ]
        for row in examples.tolist()
    ]
    return list(numbers), np.array(found, np.int64)[codes]


def _only_used(texts: Category, shown: Callable[[str], str]) -> Category:
    """Return the texts of a column as they are shown, without those of other rows."""
    codes, first = distinct(texts.codes, len(texts.values))
    return Category(codes.astype(np.int32), tuple(shown(texts.values[code]) for code in texts.codes[first].tolist()))


@contextlib.contextmanager
def timeline_file(
    where: str | Path, origin_us: float, describe: Describe | None = None, *, absolute: bool = False
) -> Iterator[TimelineWriter]:
    """Open a file for a timeline.

    Args:
        where: the file; compressed if its name ends in .gz.
        origin_us: origin of the times, microseconds since the epoch.
        describe: returns the arguments of slices; see `TimelineWriter`.
        absolute: write an array of events with times since the epoch, as smdebug did; `origin_us` must be whole.

    Raises:
        SourceError: the file cannot be written.
    """
    path = Path(where)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            path.open("wb") as file,
            gzip.GzipFile(fileobj=file, mode="wb", compresslevel=4) if path.suffix == ".gz" else file as out,
            io.BufferedWriter(cast("io.RawIOBase", out), _BUFFER) as buffered,
        ):
            yield TimelineWriter(JsonTrace(buffered, int(origin_us) if absolute else None), origin_us, describe)
    except OSError as error:
        raise SourceError(f"{path} cannot be written: {error.strerror}") from None
