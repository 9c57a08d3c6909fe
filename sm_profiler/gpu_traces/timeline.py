"""Traces of torch.profiler in a merged timeline: host threads, streams, flows from launch to kernel, and counters."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from sm_profiler.errors import SourceError
from sm_profiler.formats import event_names, layout
from sm_profiler.formats.columns import EventColumns, Floats, Mask
from sm_profiler.formats.kineto_reader import (
    ANNOTATION,
    GPU_ANNOTATION,
    KERNEL,
    MEMCPY,
    MEMSET,
    OPERATOR,
    OTHER,
    PYTHON,
    RUNTIME,
    SYNC,
    KinetoColumns,
    KinetoTrace,
)
from sm_profiler.formats.outcome import REFUSED
from sm_profiler.formatting import shorten
from sm_profiler.gpu_traces.callers import launch_rows, step_rows
from sm_profiler.gpu_traces.device_time import collectives, numbered
from sm_profiler.gpu_traces.intervals import Numbers
from sm_profiler.gpu_traces.kernels import copy_direction
from sm_profiler.gpu_traces.table import rows_by
from sm_profiler.gpu_traces.traces import Ranks, find_traces, read_trace
from sm_profiler.storage import Storage
from sm_profiler.timeline import Export, TimelineWriter, timeline_file

CATEGORIES = {
    KERNEL: "kernel", MEMCPY: "copy", MEMSET: "memset", RUNTIME: "runtime", OPERATOR: "operator", ANNOTATION: "annotation",
    GPU_ANNOTATION: "annotation", PYTHON: "python", SYNC: "synchronization", OTHER: "other",
}  # fmt: skip
_EPOCH_US = 1e15  # later times are microseconds since the epoch; earlier ones count from a machine's start
_EARLIER_US = 60e6  # before the first trace's start; another rank may begin earlier
_CHUNK = 10_000  # rows that exist as Python objects
# Clocks of two machines that agree better than this are left alone: collectives do not end everywhere at once either.
_AGREE_US = 1000.0
_MATCHED = 5  # collectives from which clocks are compared


def export_traces(source: str | os.PathLike[str], where: str | Path) -> Export:
    """Write the traces of all ranks as one timeline, one file in memory at a time.

    Args:
        source: a file, a folder or an s3:// prefix of Kineto traces.
        where: the file; compressed if its name ends in .gz.

    Raises:
        SourceError: there are no traces, they cannot be read, or the file cannot be written.
    """
    found = _traces(source)
    rank, first = next(found, (0, None))
    if first is None:
        raise SourceError(f"{os.fspath(source)} contains no traces of torch.profiler")
    clocks = Clocks()
    with timeline_file(where, max(_start_us(first) - _EARLIER_US, 0.0) // 1) as writer:
        flows = 0
        while first is not None:
            name = f"rank {rank}"
            shift = clocks.shift_us(rank, first)
            flows = add_trace(writer, name, first, shift_us=shift, flows=flows)
            if shift:
                writer.export.shift_us[name] = shift
            rank, first = next(found, (0, None))
        return writer.finish([], os.fspath(source))


@attrs.frozen
class TracedTime:
    """The time of a process that its own trace covers, microseconds since the epoch."""

    process: str
    start_us: float
    end_us: float


def add_windows(writer: TimelineWriter, storage: Storage) -> list[TracedTime]:
    """Write the traces of a profile's detailed windows to the processes that they belong to.

    Returns:
        The windows written.
    """
    windows, flows = [], 0
    for info in storage.list(f"{layout.FRAMEWORK}/"):
        path = layout.parse_path(info.key)
        if not isinstance(path, layout.DetailedTrace) or path.framework != "pytorch":
            continue
        trace, outcome = read_trace(storage, info)
        if outcome.status == REFUSED or _start_us(trace) < _EPOCH_US:
            continue
        process = layout.shown_node(path.host)
        flows = add_trace(writer, process, trace, flows=flows)
        start = _start_us(trace)
        windows.append(TracedTime(process, start, start + float(trace.events.end_us.max())))
    return windows


def outside(windows: Iterable[TracedTime], events: EventColumns) -> EventColumns:
    """Return events without the operators and kernels that were written from a window's own trace."""
    drop = np.zeros(len(events), np.bool_)
    for window in windows:
        inside = (events.start_us >= window.start_us - 1) & (events.start_us <= window.end_us)
        drop |= inside & events.node.mask(window.process.__eq__)
    drop &= events.phase.mask(
        lambda phase: phase == event_names.CPU_OPERATORS or phase.startswith(event_names.GPU_OPERATORS)
    )
    return events[~drop] if drop.any() else events


def _traces(source: str | os.PathLike[str]) -> Iterator[tuple[int, KinetoTrace]]:
    storage, infos = find_traces(source)
    ranks = Ranks()
    for info in infos:
        trace, outcome = read_trace(storage, info)
        if outcome.status != REFUSED:
            yield ranks.of(trace, info.key), trace


def _start_us(trace: KinetoTrace) -> float:
    return trace.origin_us + trace.base_us


@attrs.define
class Clocks:
    """Aligns the clocks of ranks: by the ends of their collectives, else by marked steps, if the files' times cannot be trusted."""

    _first: dict[tuple[Any, ...], float] = attrs.field(factory=dict)
    _steps: dict[str, float] = attrs.field(factory=dict)
    _origin: float = 0.0
    _known: dict[int, float] = attrs.field(factory=dict)

    def shift_us(self, rank: int, trace: KinetoTrace) -> float:
        """Return what to add to the times of a rank's trace."""
        if rank in self._known:
            return self._known[rank]
        shift = self._shift(trace)
        self._known[rank] = shift
        return shift

    def _shift(self, trace: KinetoTrace) -> float:
        ends, events = _ends(trace), trace.events
        steps = {events.name.values[events.name.codes[row]]: float(events.start_us[row]) for row in step_rows(events)}
        if not self._known:
            self._first, self._steps, self._origin = ends, steps, _start_us(trace)
            return 0.0
        apart = _start_us(trace) - self._origin
        clocks = min(_start_us(trace), self._origin) > _EPOCH_US
        common = [key for key in ends if key in self._first]
        if len(common) >= _MATCHED:
            late = np.array([ends[key] - self._first[key] for key in common]) + apart
            middle = float(np.median(late))
            spread = float(np.median(np.abs(late - middle)))
            if not clocks or (abs(middle) > _AGREE_US and spread < abs(middle) / 2):
                return -middle
            return 0.0
        if clocks:
            return 0.0
        same = [step for step in steps if step in self._steps]
        return -apart + (self._steps[same[0]] - steps[same[0]] if same else 0.0)


def _ends(trace: KinetoTrace) -> dict[tuple[Any, ...], float]:
    """Return the end of each collective; see `device_time.numbered`."""
    table = collectives(trace)
    ends = table["start_us"] + table["duration_us"]
    return {key: float(ends[row]) for key, row in numbered(table).items()}


def add_trace(
    writer: TimelineWriter, process: str, trace: KinetoTrace, *, shift_us: float = 0.0, flows: int = 0
) -> int:
    """Write a trace's events and counters to a process of a timeline.

    Args:
        shift_us: added to its times.
        flows: flows that the timeline holds already.

    Returns:
        The flows that it holds now.
    """
    events = trace.events
    base = round((_start_us(trace) - writer.origin_us + shift_us) * 1e3)
    device = np.flatnonzero(events.on_device)
    launch = launch_rows(events, events[device])
    flow = np.zeros(len(events), np.int64)
    known = launch >= 0
    flow[launch[known]] = numbers = flows + 1 + np.arange(int(known.sum()))
    flow[device[known]] = -flow[launch[known]]
    _add_slices(writer, process, events, flow, base)
    for name, at, values in _counters(events, device, launch):
        for part in _chunks(len(at)):
            for moment, value in zip(at[part].tolist(), values[part].tolist(), strict=True):
                writer.add_counter(process, name, base + round(moment * 1e3), {"value": value})
    return int(numbers[-1]) if len(numbers) else flows


def _chunks(count: int) -> Iterable[slice]:
    return (slice(at, at + _CHUNK) for at in range(0, count, _CHUNK))


def _add_slices(writer: TimelineWriter, process: str, events: KinetoColumns, flow: Numbers, base: int) -> None:
    names = [shorten(name, 300) or "?" for name in events.name.values]
    on_device = events.on_device
    columns = (
        events.start_us, events.duration_us, events.name.codes, events.category, events.thread, events.stream, events.device,
        events.bytes, flow, on_device,
    )  # fmt: skip
    for part in _chunks(len(events)):
        for start, length, name, category, thread, stream, device, size, number, ran in zip(
            *(column[part].tolist() for column in columns), strict=True
        ):
            at, until = base + round(start * 1e3), base + round((start + length) * 1e3)
            args = {"bytes": size} if size >= 0 else {}
            lane = _lane(category, thread, stream, device) if not ran else f"GPU {max(device, 0)} stream {stream}"
            writer.add_slice(process, lane, names[name], CATEGORIES[category], at, until - at, args, number)


def _lane(category: int, thread: int, stream: int, device: int) -> str:
    if category in (GPU_ANNOTATION, SYNC) and stream >= 0:
        return f"GPU {max(device, 0)} stream {stream}, {CATEGORIES[category]}s"
    return f"host thread {thread}" if category != OTHER else f"other, thread {thread}"


def _counters(events: KinetoColumns, device: Numbers, launch: Numbers) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield name, times and values: operations that wait in each stream, and bandwidth of copies by direction."""
    known = launch >= 0
    chosen, calls = events[device[known]], launch[known]
    for own in rows_by(chosen.stream):
        queue = _sums(events.start_us[calls[own]], chosen.start_us[own], np.ones(len(own)))
        yield f"queue of stream {chosen.stream[own[0]]}", *queue
    copies = events[device[(events.category[device] == MEMCPY) & (events.bytes[device] > 0)]]
    directions = np.array([copy_direction(name) for name in copies.name.values] or [""], object)[copies.name.codes]
    for direction in sorted(set(directions.tolist())):
        mine: Mask = (directions == direction) & (copies.duration_us > 0)
        rate = copies.bytes[mine] / copies.duration_us[mine] / 1e3
        yield f"{direction}, GB/s", *_sums(copies.start_us[mine], copies.end_us[mine], rate)


def _sums(start: Floats, end: Floats, value: Floats) -> tuple[Floats, Floats]:
    """Return the moments at which the sum of values changes, and the sum from then on."""
    at, change = np.concatenate([start, end]), np.concatenate([value, -value])
    order = np.lexsort((-change, at))
    at, total = at[order], np.cumsum(change[order])
    last = np.append(at[1:] != at[:-1], True) if len(at) else np.empty(0, np.bool_)
    return at[last], np.where(np.abs(total[last]) < 1e-9, 0.0, np.round(total[last], 6))  # rounding
