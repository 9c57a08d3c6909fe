"""Conversion of a profile to the records of a Chrome trace, for Perfetto and chrome://tracing.

A process of the trace is a training process (`algo-1-0`) or a machine (`algo-1 system`). Its threads are phases, with as
many tracks each as its events need to nest, because viewers show only events that nest.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.analysis.events import event_arguments
from sm_profiler.analysis.selection import tick_times
from sm_profiler.formats import event_names, layout
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.formats.layout import PythonStats
from sm_profiler.identity import OWNER_TYPES

Record = dict[str, Any]
LOW_GPU = 85.0  # percent; the default threshold of the filter `lowgpu`
MAX_LANES = 32  # tracks of a phase; further overlapping events become asynchronous ones, which need not nest
CHUNK = 20_000  # rows converted to Python objects at once
# order of the tracks of a process
_PHASES = (
    event_names.STEP, event_names.FORWARD, "Backward", event_names.OPTIMIZER, "DataLoader", event_names.TENSORFLOW_DATA_ITERATOR,
    "Dataset", "/device", "/host", event_names.GPU_OPERATORS, event_names.CPU_OPERATORS,
)  # fmt: skip


@attrs.frozen
class Clock:
    """Offset of a process's clock.

    Attributes:
        offset_us: microseconds that it is ahead of the common clock.
        error_us: error bound of the offset; None if it was not measured.
    """

    offset_us: float = 0.0
    error_us: float | None = None


@attrs.define
class TrackIds:
    """Numbers of processes and tracks, assigned on first use together with the metadata records that name them."""

    _processes: dict[str, int] = attrs.field(factory=dict, init=False)
    _tracks: dict[tuple[int, str], int] = attrs.field(factory=dict, init=False)

    def process(self, name: str) -> tuple[int, list[Record]]:
        """Return the number of a process, and its metadata records if it is new."""
        if name in self._processes:
            return self._processes[name], []
        number = self._processes[name] = len(self._processes) + 1
        return number, [
            _name_record("process_name", number, 0, name),
            _sort_index("process_sort_index", number, 0, number),
        ]

    def track(self, process: int, name: str, order: int) -> tuple[int, list[Record]]:
        """Return the number of a track in a process, and its metadata records if it is new."""
        key = process, name
        if key in self._tracks:
            return self._tracks[key], []
        number = self._tracks[key] = len(self._tracks) + 1
        return number, [
            _name_record("thread_name", process, number, name),
            _sort_index("thread_sort_index", process, number, order),
        ]


@attrs.frozen
class Section:
    """A section of the trace.

    Attributes:
        metadata: records that name its processes and tracks.
        records: all other records, sorted by time.
    """

    metadata: list[Record]
    records: Iterator[Record]


def span_section(events: EventColumns, tracks: TrackIds, clocks: dict[str, Clock]) -> Section:
    """Convert trace events; instants remain instants."""
    metadata: list[Record] = []
    process, row = np.zeros(len(events), np.int64), np.zeros(len(events), np.int64)
    overlapping, offset = np.zeros(len(events), np.bool_), np.zeros(len(events))
    group, keys = _groups(events)
    sorted_rows = np.lexsort((-events.duration_us, events.start_us, group))
    edges = np.flatnonzero(np.diff(group[sorted_rows])) + 1
    for rows, (node, phase, tid, worker) in zip(np.split(sorted_rows, edges), keys, strict=bool(keys)):
        process[rows], fresh = tracks.process(node)
        metadata += fresh
        name = phase if worker < 0 else f"{phase} {worker}"
        name = name if tid < 0 else f"{name} thread {tid}"
        lanes = nesting_lanes(events.start_us[rows], events.end_us[rows])
        for lane in np.unique(lanes).tolist():
            number, fresh = tracks.track(
                int(process[rows[0]]), name if lane == 0 else f"{name} ({lane + 1})", _order(phase)
            )
            row[rows[lanes == lane]] = number
            metadata += fresh
        overlapping[rows] = lanes == MAX_LANES
        offset[rows] = clocks.get(node, Clock()).offset_us
    order = np.lexsort((-events.duration_us, events.start_us - offset))
    return Section(metadata, _spans(events, order, process, row, overlapping, offset))


def _spans(  # columns of one table
    events: EventColumns,
    order: NDArray[Any],
    process: NDArray[Any],
    row: NDArray[Any],
    overlapping: NDArray[np.bool_],
    offset: NDArray[Any],
) -> Iterator[Record]:
    """Yield a record per event, two if it is shown as asynchronous because it overlaps too many others."""
    ends: list[tuple[float, int, Record]] = []  # a heap
    for first in range(0, len(order), CHUNK):
        rows = order[first : first + CHUNK]
        part = events[rows]
        places = zip(
            process[rows].tolist(), row[rows].tolist(), part.instants.tolist(), overlapping[rows].tolist(), strict=True
        )
        phases = [part.phase.values[code] for code in part.phase.codes.tolist()]
        for number, (event, (pid, tid, instant, asynchronous), phase) in enumerate(
            zip(_plain(part, offset[rows]), places, phases, strict=True), first
        ):
            while ends and ends[0][0] <= event["ts"]:
                yield heapq.heappop(ends)[2]
            place = {"pid": pid, "tid": tid, "cat": phase}
            if instant:
                del event["dur"]
                yield {**event, "ph": "i", "s": "t", **place}
            elif asynchronous:
                end = event["ts"] + event.pop("dur")
                yield {**event, "ph": "b", "id": number, **place}
                heapq.heappush(
                    ends, (end, number, {"name": event["name"], "ts": end, "ph": "e", "id": number, **place})
                )
            else:
                yield {**event, "ph": "X", **place}
    while ends:
        yield heapq.heappop(ends)[2]


def counter_section(system: SystemColumns, tracks: TrackIds) -> Section:
    """Convert system metrics to one counter per device, and one with mean and maximum of all cores of a machine."""
    metadata: list[Record] = []
    streams: list[Iterator[Record]] = []
    for node in np.unique(system.node.codes).tolist():
        rows = system[system.node.codes == node]
        process, fresh = tracks.process(f"{system.node.values[node]} system")
        metadata += fresh
        cores = rows.type.mask("cpu")
        streams += [
            _core_counters(rows[cores], code, process) for code in np.unique(rows.dimension.codes[cores]).tolist()
        ]
        others = rows[~cores & ~rows.type.mask(lambda kind: kind in OWNER_TYPES)]
        streams.append(_counters(others[np.argsort(others.timestamp, kind="stable")], process))
    return Section(metadata, merge_by_time(streams))


def low_gpu_section(system: SystemColumns, below: float, tracks: TrackIds) -> Section:
    """Mark each tick at which a GPU's utilization was below a threshold in percent."""
    rows = system[system.dimension.mask("GPUUtilization")]
    low = rows.value < below
    if not low.any():
        return Section([], iter(()))
    process, metadata = tracks.process("low GPU utilization")
    return Section(metadata, _marks(rows[low], tick_times(rows)[low], process))


def _marks(rows: SystemColumns, ticks: NDArray[np.int64], process: int) -> Iterator[Record]:
    order = np.argsort(ticks, kind="stable")
    names = zip(rows.node.codes.tolist(), rows.name.codes.tolist(), strict=True)
    values = [f"{rows.node.values[node]} {rows.name.values[name]}" for node, name in names]
    edges = np.flatnonzero(np.diff(ticks[order], prepend=-1, append=-1))
    for first, last in pairwise(edges.tolist()):
        args = {values[row]: float(rows.value[row]) for row in order[first:last].tolist()}
        at = float(ticks[order[first]])
        yield {"name": "sys_metrics_bottlenecks", "ph": "i", "s": "g", "pid": process, "tid": 0, "ts": at, "args": args}


def python_section(stats: Iterable[PythonStats], tracks: TrackIds) -> Section:
    """Convert the windows of Python profilers; the arguments contain the path of their statistics."""
    metadata: list[Record] = []
    records: list[Record] = []
    for each in sorted(stats, key=lambda one: one.window.start_us):
        window = each.window
        process, fresh = tracks.process(layout.shown_node(each.node))
        row, more = tracks.track(process, f"Python profiling: {each.profiler}", len(_PHASES))
        metadata += fresh + more
        step = layout.NO_STEP if window.start_step is None else window.start_step
        records.append({
            "name": f"{each.profiler} {window.start_mode} {step}", "ph": "X", "pid": process, "tid": row, "ts": window.start_us,
            "dur": window.end_us - window.start_us, "cat": "python", "args": {"file": each.path},
        })  # fmt: skip
    return Section(metadata, iter(records))


def merge_by_time(streams: Iterable[Iterator[Record]]) -> Iterator[Record]:
    """Merge streams of records that are sorted by time."""
    return heapq.merge(*streams, key=lambda record: float(record["ts"]))


def clock_record(clocks: dict[str, Clock]) -> Record:
    """Return a metadata record with the offsets of all clocks and their error bound."""
    known = [clock.error_us for clock in clocks.values() if clock.error_us is not None]
    args = {
        "clock": "microseconds since the epoch",
        "error_bound_us": max(known) if known and len(known) == len(clocks) else None,
        "processes": {node: attrs.asdict(clock) for node, clock in sorted(clocks.items())},
    }
    if args["error_bound_us"] is None:
        args["note"] = "the clocks of some machines were not compared: times are those of each machine's own clock"
    return {"name": event_names.CLOCK, "ph": "M", "pid": 0, "tid": 0, "args": args}


def read_clocks(metadata: Iterable[dict[str, Any]], nodes: Iterable[str]) -> dict[str, Clock]:
    """Return the clock offsets that processes recorded, by node."""
    clocks = dict.fromkeys(nodes, Clock())
    for record in metadata:
        args = record.get("args")
        if not isinstance(args, dict):
            continue
        offset: Any = args.get("clock_offset_us") or 0
        error: Any = args.get("clock_error_us")
        if _is_time(offset) and _is_time(error):
            clocks[str(record.get("node"))] = Clock(float(offset), float(error))
    return clocks


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1 << 62


def nesting_lanes(starts: NDArray[Any], ends: NDArray[Any]) -> NDArray[np.int64]:
    """Assign spans to lanes in which they nest; they must be sorted by start, longer ones first.

    Spans that overlap so many others that they fit no lane are assigned to lane `MAX_LANES`, in which they do not nest.
    """
    lanes = np.full(len(starts), MAX_LANES, np.int64)
    open_ends: list[list[float]] = []
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        for lane, stack in enumerate(open_ends):
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or stack[-1] >= end:
                stack.append(end)
                lanes[number] = lane
                break
        else:
            if len(open_ends) < MAX_LANES:
                lanes[number] = len(open_ends)
                open_ends.append([end])
    return lanes


def _groups(events: EventColumns) -> tuple[NDArray[np.int64], list[tuple[str, str, int, int]]]:
    """Number the combinations of process, phase, thread and worker; return each row's number, and the combinations."""
    workers = np.where(events.phase.mask(event_names.DATALOADER_WORKER), events.worker_id, -1)
    columns: list[NDArray[Any]] = [events.node.codes, events.phase.codes, events.tid, workers]
    distinct = [np.unique(column, return_inverse=True) for column in columns]
    group = np.zeros(len(events), np.int64)
    for values, place in distinct:
        group = group * max(1, len(values)) + place
    _, first, group = np.unique(group, return_index=True, return_inverse=True)
    keys = [
        (
            events.node.values[events.node.codes[row]],
            events.phase.values[events.phase.codes[row]],
            int(events.tid[row]),
            int(workers[row]),
        )
        for row in first.tolist()
    ]
    return group, keys


def _plain(events: EventColumns, offset_us: NDArray[Any]) -> Iterator[Record]:
    names = [events.name.values[code] for code in events.name.codes.tolist()]
    times = zip((events.start_us - offset_us).tolist(), events.duration_us.tolist(), strict=True)
    for name, (start, duration), args in zip(names, times, event_arguments(events), strict=True):
        record: Record = {"name": name, "ts": start, "dur": duration}
        if args:
            record["args"] = {key: value for key, value in args.items() if key != "ph"}
        yield record


def _core_counters(rows: SystemColumns, dimension: int, process: int) -> Iterator[Record]:
    cores = rows[rows.dimension.codes == dimension]
    at, place = np.unique(cores.timestamp, return_inverse=True)
    means = np.bincount(place, cores.value) / np.bincount(place)
    greatest = np.full(len(at), -np.inf)
    np.maximum.at(greatest, place, cores.value)
    name = f"CPU {rows.dimension.values[dimension]}"
    for time, mean, maximum in zip((at * 1e6).tolist(), means.tolist(), greatest.tolist(), strict=True):
        args = {"mean": round(mean, 2), "max": maximum}
        yield {"name": name, "ph": "C", "pid": process, "tid": 0, "ts": time, "args": args}


def _counters(rows: SystemColumns, process: int) -> Iterator[Record]:
    names = [rows.name.values[code] for code in rows.name.codes.tolist()]
    dimensions = [rows.dimension.values[code] for code in rows.dimension.codes.tolist()]
    for time, value, name, dimension in zip(
        (rows.timestamp * 1e6).tolist(), rows.value.tolist(), names, dimensions, strict=True
    ):
        counter = f"{name} {dimension}".strip()
        yield {"name": counter, "ph": "C", "pid": process, "tid": 0, "ts": time, "args": {"value": value}}


def _order(phase: str) -> int:
    return next((number for number, start in enumerate(_PHASES) if phase.startswith(start)), len(_PHASES))


def _name_record(kind: str, process: int, thread: int, name: str) -> Record:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _sort_index(kind: str, process: int, thread: int, order: int) -> Record:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"sort_index": order}}
