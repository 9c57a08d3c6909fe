"""Timelines for Perfetto and chrome://tracing: trace events in JSON, written piece by piece.

Each process of the job is a process of the trace, and its lanes are threads: the loop with its steps and phases, modules,
data loading, each worker, operators by thread and device, communication. Each node has counters. Slices of a thread
nest; those that would cross are moved to another lane.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, cast

import attrs
import numpy as np

from sm_profiler.errors import SourceError
from sm_profiler.formats import event_names
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.formatting import clean, shorten, strict_json

LOOP, FORWARD_MODULES, BACKWARD_MODULES, LOADER, COMMUNICATION, OWN = (
    "loop",
    "modules, forward",
    "modules, backward",
    "data loading",
    "communication",
    "profiler",
)
_ORDER = (
    LOOP, LOADER, FORWARD_MODULES, BACKWARD_MODULES, "operators", "host thread", "GPU", COMMUNICATION, "loader worker", OWN,
)  # fmt: skip
_LANES = {
    event_names.FORWARD_MODULE: FORWARD_MODULES,
    event_names.BACKWARD_MODULE: BACKWARD_MODULES,
    event_names.DATALOADER_ITER: LOADER,
    event_names.DATALOADER_INITIALIZE: LOADER,
    event_names.TENSORFLOW_DATA_ITERATOR: LOADER,
    event_names.NCCL_MANAGER: COMMUNICATION,
}
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
MAX_LANES = 64  # of one name; more overlapping events than this are counted, not written
_ROWS = 1 << 14  # that exist as Python objects
_REMEMBERED = 50_000  # names whose shown form is kept
_BUFFER = 1 << 20
_EXACT_NS = 10**15  # a float has these as microseconds without an error

Arguments = Mapping[str, Any]  # values that JSON has
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
        left_out: slices that overlap with MAX_LANES others, which are not written.
        clock_error_us: process → possible error of its clock, if the hook measured it.
        shift_us: process → what was added to its times, where clocks disagree.
    """

    events: int = 0
    processes: int = 0
    left_out: int = 0
    clock_error_us: dict[str, float] = attrs.field(factory=dict)
    shift_us: dict[str, float] = attrs.field(factory=dict)


@attrs.define
class _Lane:
    """Slices of one thread; `stack` contains the ends of the open ones."""

    thread: int
    stack: list[int] = attrs.field(factory=list)
    last_start: float = -np.inf

    def takes(self, start: int, end: int) -> bool:
        """Add a slice if it nests here; return whether it does."""
        if start < self.last_start:  # arrived late: it may cross slices that are already closed
            return False
        stack = self.stack
        while stack and stack[-1] <= start:
            stack.pop()
        if stack and end > stack[-1]:
            return False
        stack.append(end)
        self.last_start = start
        return True


@attrs.define
class _Process:
    """A process of the timeline: its number, its lanes by name, and the number of its threads."""

    number: int
    lanes: dict[str, list[_Lane]] = attrs.field(factory=dict)
    threads: int = 0


class TimelineWriter:
    """Writes a trace, times in nanoseconds since `origin_us`, which is in microseconds since the epoch.

    `describe` returns the arguments of slices, one per event, or None for events that need only their steps.

    The trace is an object whose times count from its origin; with `absolute`, it is an array of events whose times count
    from the epoch.
    """

    def __init__(
        self, out: BinaryIO, origin_us: float, describe: Describe | None = None, *, absolute: bool = False
    ) -> None:
        self._out, self._describe, self.origin_us = out, describe, origin_us
        self._is_array, self._shift = absolute, 1000 * int(origin_us) if absolute else 0
        self._lines: list[str] = []
        self._separator = "\n"
        self._processes: dict[str, _Process] = {}
        self.export = Export()
        out.write(b"[" if absolute else b'{"displayTimeUnit":"ms","traceEvents":[')

    def add_slice(  # one argument a field
        self, process: str, lane: str, name: str, category: str, start: int, length: int, args: Arguments, flow: int = 0
    ) -> None:
        """Write a slice to a lane of a process; those of a lane in their order.

        A positive flow begins here, and its negative ends here.
        """
        more = f',"args":{strict_json(args, separators=(",", ":"))}' if args else ""
        self._add(self._process(process), lane, _head(name, category), start, length, more, flow)

    def add_mark(self, process: str, name: str, at: int, args: Arguments) -> None:
        """Mark a moment across all processes."""
        self._add_moment('i","s":"g', self._process(process), name, at, args)

    def add_counter(self, process: str, name: str, at: int, values: Arguments) -> None:
        self._add_moment("C", self._process(process), name, at, values)

    def add_events(self, events: EventColumns) -> None:
        """Write trace events, sorted by start, longer ones first."""
        with np.errstate(over="ignore"):
            start = np.rint((events.start_us - self.origin_us) * 1e3)
            length = np.maximum(np.rint(events.duration_us * 1e3), 0)
        order = np.lexsort((-events.duration_us, events.start_us))
        order = order[np.isfinite(start[order]) & np.isfinite(length[order])]
        for at in range(0, len(order), _ROWS):
            rows = order[at : at + _ROWS]
            chosen = events[rows]
            described = (self._describe(chosen) if self._describe else None) or [{}] * len(chosen)
            nodes, names, phases = chosen.node.values, chosen.name.values, chosen.phase.values
            columns = (
                chosen.node.codes, chosen.name.codes, chosen.phase.codes, chosen.tid, chosen.worker_id, chosen.step,
                start[rows], length[rows],
            )  # fmt: skip
            for node, name, code, tid, worker, step, begin, lasting, args in zip(
                *(column.tolist() for column in columns), described, strict=True
            ):
                phase = phases[code]
                more = f',"args":{{"step":{step}}}' if step >= 0 else ""
                if args:
                    step_args = {"step": step} if step >= 0 else {}
                    more = f',"args":{strict_json({**step_args, **args}, separators=(",", ":"))}'
                lane = _lane_name(phase, tid, worker)
                self._add(
                    self._process(nodes[node]), lane, _event_head(names[name], phase), int(begin), int(lasting), more
                )

    def add_system(self, system: SystemColumns) -> None:
        """Write system metrics as counters of their node; of several values of a moment the last one counts."""
        with np.errstate(over="ignore"):
            at = np.rint((system.timestamp * 1e6 - self.origin_us) * 1e3)
        wanted = system.name.mask(COUNTERS.__contains__) | system.dimension.mask(COUNTERS.__contains__)
        wanted &= np.isfinite(system.value) & np.isfinite(at) & ~system.dimension.mask("Platform")
        rows = np.flatnonzero(wanted)
        rows = rows[np.argsort(system.timestamp[rows], kind="stable")]
        nodes, dimensions, names = system.node.values, system.dimension.values, system.name.values
        columns = (at, system.node.codes, system.dimension.codes, system.name.codes, system.value)
        moments = groupby(zip(*(column[rows].tolist() for column in columns), strict=True), itemgetter(0))
        for moment, samples in moments:
            counters: dict[tuple[int, str], dict[str, float]] = {}
            for _, node, dimension, name, value in samples:
                title = COUNTERS.get(dimensions[dimension]) or COUNTERS[names[name]]
                counters.setdefault((node, title), {})[_series(names[name])] = value
            for (node, title), values in counters.items():
                process = self._process(f"{nodes[node]} system", order=100_000)
                self._add_moment("C", process, title, int(moment), values)

    def finish(self, metadata: Iterable[Mapping[str, Any]], source: str) -> Export:
        """End the trace with the errors of its clocks."""
        done = self.export
        done.clock_error_us = {
            node: clock.error_us for node, clock in read_clocks(metadata).items() if clock.error_us is not None
        }
        for name, error in done.clock_error_us.items():
            if name in self._processes:
                self._label(self._processes[name], f"clock within {error / 1e3:.3g} ms")
        for name, shift in done.shift_us.items():
            self._label(self._processes[name], f"shifted by {shift / 1e3:+.3g} ms")
        done.processes = len(self._processes)
        about = {
            "source": clean(source),
            "start_time_since_epoch_in_micros": round(self.origin_us),
            "clock_error_us": done.clock_error_us,
            "clock_shift_us": done.shift_us,
            "events_left_out": done.left_out,
        }
        if self._is_array:
            self._name(event_names.CLOCK, 0, 0, {**about, "start_time_since_epoch_in_micros": 0})
        self._flush()
        self._out.write(b"\n]\n" if self._is_array else f'\n],"otherData":{json.dumps(about)}}}\n'.encode("ascii"))
        return done

    def _process(self, name: str, *, order: int = 0) -> _Process:
        found = self._processes.get(name)
        if found is None:
            found = self._processes[name] = _Process(len(self._processes) + 1)
            self._name("process_name", found.number, 0, {"name": shorten(name, 200)})
            self._name("process_sort_index", found.number, 0, {"sort_index": order or found.number})
        return found

    def _lane(self, process: _Process, name: str, start: int, end: int) -> _Lane | None:
        """Return the lane that takes a slice; None if too many others overlap with it."""
        lanes = process.lanes.setdefault(name, [])
        for lane in lanes:
            if lane.takes(start, end):
                return lane
        if len(lanes) >= MAX_LANES:
            return None
        process.threads += 1
        fresh = _Lane(process.threads, [end], start)
        lanes.append(fresh)
        label = name if len(lanes) == 1 else f"{name} ({len(lanes)})"
        order = next((place for place, known in enumerate(_ORDER) if name.startswith(known)), len(_ORDER))
        self._name("thread_name", process.number, fresh.thread, {"name": shorten(label, 200)})
        self._name("thread_sort_index", process.number, fresh.thread, {"sort_index": order * 1000 + len(lanes)})
        return fresh

    def _add(self, process: _Process, lane: str, head: str, start: int, length: int, more: str, flow: int = 0) -> None:
        taken = self._lane(process, lane, start, start + length)
        if taken is None:
            self.export.left_out += 1
            return
        at = f'"pid":{process.number},"tid":{taken.thread},"ts":{_microseconds(start + self._shift)}'
        self._write(f'{head},{at},"dur":{_microseconds(length)}{more}}}')
        if flow:
            half = '"ph":"s"' if flow > 0 else '"ph":"f","bp":"e"'
            self._write(f'{{"name":"launch","cat":"launch",{half},"id":{abs(flow)},{at}}}')
        self.export.events += 1

    def _add_moment(self, kind: str, process: _Process, name: str, at: int, args: Arguments) -> None:
        ts = _microseconds(at + self._shift)
        self._write(
            f'{{"name":{json.dumps(name)},"ph":"{kind}","pid":{process.number},"tid":0,"ts":{ts},"args":{strict_json(args)}}}'
        )
        self.export.events += 1

    def _label(self, process: _Process, label: str) -> None:
        self._name("process_labels", process.number, 0, {"labels": label})

    def _name(self, kind: str, process: int, thread: int, args: Arguments) -> None:
        self._write(json.dumps({"name": kind, "ph": "M", "pid": process, "tid": thread, "ts": 0, "args": args}))

    def _write(self, event: str) -> None:
        self._lines.append(event)
        if len(self._lines) >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._lines:
            self._out.write((self._separator + ",\n".join(self._lines)).encode("ascii"))
            self._lines, self._separator = [], ",\n"


@lru_cache(_REMEMBERED)
def _lane_name(phase: str, tid: int, worker: int) -> str:
    phase = clean(phase)
    if phase.startswith(event_names.DATALOADER_WORKER):
        return f"loader worker {worker}" if worker >= 0 else "loader workers"
    if phase == event_names.CPU_OPERATORS:
        return f"operators, thread {tid}" if tid >= 0 else "operators"
    if phase.startswith(event_names.GPU_OPERATORS):
        return f"GPU {phase.rpartition(':')[2]}"
    return OWN if phase.startswith(event_names.OWN) else _LANES.get(phase, LOOP)


@lru_cache(_REMEMBERED)
def _event_head(name: str, phase: str) -> str:
    return _head(shorten(name, 300) or "?", shorten(phase, 100) or "event")


@lru_cache(_REMEMBERED)
def _head(name: str, category: str) -> str:
    return f'{{"name":{json.dumps(name)},"cat":{json.dumps(category)},"ph":"X"'


@lru_cache(_REMEMBERED)
def _series(name: str) -> str:
    return SERIES.get(name) or shorten(name, 60) or "value"


def _microseconds(nanoseconds: int) -> str:
    if -_EXACT_NS < nanoseconds < _EXACT_NS:
        return repr(nanoseconds / 1000)
    whole, rest = divmod(abs(nanoseconds), 1000)
    text = f"{'-' if nanoseconds < 0 else ''}{whole}.{rest:03}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text


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
            yield TimelineWriter(buffered, origin_us, describe, absolute=absolute)
    except OSError as error:
        raise SourceError(f"{path} cannot be written: {error.strerror}") from None
