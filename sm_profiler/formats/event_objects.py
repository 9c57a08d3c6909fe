"""Events and measurements as Python objects and back, for programs that process lists of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats import layout
from sm_profiler.formats.columns import Category, EventColumns, SystemColumns
from sm_profiler.formats.event_names import STEP

# timeline → its name in notebooks
FILE_TYPES = {
    layout.PYTHON_TIMELINE: "PythontimelineMetrics",
    layout.MODEL_TIMELINE: "DetailedframeworkMetrics",
    layout.DETAILED_TRACE: "TFProfilerMetrics",
    layout.HOROVOD_TIMELINE: "HorovodMetrics",
    layout.SMDATAPARALLEL_TIMELINE: "SMDataParallelMetrics",
}

_TIMELINES = {name: timeline for timeline, name in FILE_TYPES.items()} | {"": layout.HOROVOD_TIMELINE}


@attrs.define
class ProfilerSystemEvent:
    """One measurement.

    Attributes:
        type: cpu, gpu, memory, i/o or network.
        name: cpu0, gpu3 …; None if the record has no name.
        dimension: CPUUtilization …
        value: percent, bytes/s or 1/s.
        node_id: `algo-1`.
        timestamp: seconds since the epoch.
    """

    type: str = attrs.field(alias="event_type")  # aliases are the known names
    name: str | None
    dimension: str
    value: float
    node_id: str
    timestamp: float


@attrs.define
class ThreadInfo:
    """A thread of a trace."""

    tid: Any
    thread_name: str


@attrs.define
class ProcessInfo:
    """A process of a trace, which represents a phase."""

    id: Any
    name: str
    _threads: dict[Any, ThreadInfo] = attrs.field(factory=dict, alias="threads")

    def add_thread(self, threadid: Any, thread_name: str) -> None:
        """Add a thread unless one with that number exists."""
        self._threads.setdefault(threadid, ThreadInfo(threadid, thread_name))

    def get_thread_info(self, threadid: Any) -> ThreadInfo:
        """Return the thread with a number.

        Raises:
            KeyError: there is no such thread.
        """
        return self._threads[threadid]


@attrs.define
class TraceEvent:
    """One span of a trace.

    Attributes:
        start_time, end_time: microseconds since the epoch.
        duration: microseconds.
        event_name: `Step:ModeKeys.TRAIN` …
        node_id: `algo-1-0`.
        pid, tid: process and thread of the operating system; -1 if unknown.
        phase_pid, phase_tid: numbers of process and thread in the trace.
        event_args: its arguments, or None.
        phase: `X`, a complete event.
        file_type: its timeline, `PythontimelineMetrics` …
        process_info: its phase as a process of the trace.
    """

    start_time: float = attrs.field(alias="ts")
    event_name: str = attrs.field(alias="name")
    duration: float = attrs.field(alias="dur")
    phase_pid: int
    phase_tid: int
    event_args: dict[str, Any] | None
    node_id: str
    phase: str
    file_type: str
    event_phase: str = ""
    pid: int = 0
    tid: int = 0
    process_info: ProcessInfo | None = None
    end_time: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.end_time = self.start_time + self.duration

    def to_json(self) -> str:
        """Return the event as one JSON object of a Chrome trace."""
        record: dict[str, Any] = {
            "name": self.event_name,
            "pid": self.pid,
            "tid": self.tid,
            "ph": self.phase,
            "ts": self.start_time,
        }
        if self.phase == "X":
            record["dur"] = self.duration
        if self.event_args:
            record["args"] = self.event_args
        return json.dumps(record)


def system_events(system: SystemColumns) -> list[ProfilerSystemEvent]:
    columns = (system.type, system.name, system.dimension, system.node)
    kinds, names, dimensions, nodes = ([category.values[code] for code in category.codes] for category in columns)
    rows = zip(kinds, names, dimensions, system.value.tolist(), nodes, system.timestamp.tolist(), strict=True)
    return [
        ProfilerSystemEvent(kind, name or None, dimension, value, node, at)
        for kind, name, dimension, value, node, at in rows
    ]


def trace_events(events: EventColumns) -> list[TraceEvent]:
    """Convert each row to an object; times are integers if all of them are whole."""
    processes: dict[tuple[int, str], ProcessInfo] = {}
    starts, durations = _numbers(events.start_us), _numbers(events.duration_us)
    pids = np.where(events.pid < 0, events.track, events.pid).tolist()
    texts = (events.name, events.phase, events.node, events.kind)
    names, phases, nodes, kinds = ([category.values[code] for code in category.codes] for category in texts)
    rows = zip(starts, durations, names, phases, nodes, kinds, pids, events.tid.tolist(), events.track.tolist(), strict=True)  # fmt: skip
    return [
        TraceEvent(
            start, name, duration, track, tid, args, node, "X", FILE_TYPES.get(kind, kind), phase, pid, tid,
            processes.setdefault((track, phase), ProcessInfo(track, phase)),
        )
        for (start, duration, name, phase, node, kind, pid, tid, track), args in zip(rows, event_arguments(events), strict=True)
    ]  # fmt: skip


def event_arguments(events: EventColumns) -> list[dict[str, Any] | None]:
    """Return each row's arguments as in the file; None for rows without any. Step numbers of steps are text, as in files."""
    others = [json.loads(text) if text else {} for text in events.args.values]
    known: dict[str, NDArray[Any]] = {
        "pid": events.pid,
        "thread_id": events.tid,
        "step_num": events.step,
        "worker_id": events.worker_id,
        "num_workers": events.num_workers,
        "pin_memory": events.pin_memory,
    }
    is_step = events.name.mask(lambda name: STEP in name).tolist()
    loader = (events.num_workers >= 0) | (events.pin_memory >= 0)
    lists = {key: column.tolist() for key, column in known.items()}
    found: list[dict[str, Any] | None] = []
    for row, (code, loads) in enumerate(zip(events.args.codes.tolist(), loader.tolist(), strict=True)):
        args: dict[str, Any] = {}
        for key, column in lists.items():
            value = column[row]
            if value >= 0 or (key == "worker_id" and loads):
                text = key == "step_num" and is_step[row]
                args[key] = str(value) if text else bool(value) if key == "pin_memory" else value
        if others:
            other = others[code]
            args |= other if isinstance(other, dict) else {}
            if "tid" in args:  # the thread under another name
                args.pop("thread_id", None)
        found.append(args or None)
    return found


def _numbers(times: Any) -> list[float]:
    rounded = np.rint(times)
    listed: list[float] = (rounded.astype(np.int64) if np.array_equal(rounded, times) else times).tolist()
    return listed


def system_columns(events: Sequence[Any]) -> SystemColumns:
    """Return columns of objects with the attributes of ProfilerSystemEvent."""
    return SystemColumns(
        np.asarray([event.timestamp for event in events], np.float64),
        np.asarray([event.value for event in events], np.float64),
        Category.of(event.node_id for event in events),
        Category.of(event.type for event in events),
        Category.of(event.name or "" for event in events),
        Category.of(event.dimension or "" for event in events),
    )


def event_columns(events: Sequence[Any]) -> EventColumns:
    """Return columns of objects with the attributes of TraceEvent."""
    args = [event.event_args if isinstance(getattr(event, "event_args", None), dict) else {} for event in events]
    files = [getattr(event, "file_type", "pythontimeline") for event in events]
    return EventColumns(
        np.asarray([event.start_time for event in events], np.float64),
        np.asarray([event.end_time - event.start_time for event in events], np.float64),
        Category.of(event.event_name for event in events),
        Category.of(event.event_phase for event in events),
        Category.of(event.node_id or "" for event in events),
        Category.of(_TIMELINES.get(kind, kind) for kind in files),
        np.asarray([_int(each.get("step_num")) for each in args], np.int64),
        np.asarray(
            [_int(each.get("pid", getattr(event, "pid", -1))) for each, event in zip(args, events, strict=True)],
            np.int64,
        ),
        np.asarray(
            [_int(each.get("thread_id", getattr(event, "tid", -1))) for each, event in zip(args, events, strict=True)],
            np.int64,
        ),
        np.asarray([_int(each.get("worker_id")) for each in args], np.int32),
        np.asarray([_int(each.get("num_workers")) for each in args], np.int32),
        np.asarray([_int(each.get("pin_memory")) for each in args], np.int8),
        Category.of("" for _ in events),
    )


def _int(value: object) -> int:
    try:
        return int(value)  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError, OverflowError):
        return -1
