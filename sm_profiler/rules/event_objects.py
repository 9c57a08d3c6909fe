"""Rows as event objects for rules of the old API, and event objects as columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sm_profiler.formats.columns import Category, EventColumns, SystemColumns
from sm_profiler.formats.event_names import STEP


class SystemEvent:
    """A system metric: type, name, dimension, value, node_id, timestamp (seconds since the epoch)."""

    __slots__ = ("dimension", "name", "node_id", "timestamp", "type", "value")

    def __init__(  # the old constructor
        self, event_type: str, name: str, dimension: str, value: float, node_id: str, timestamp: float
    ) -> None:
        self.type, self.name, self.dimension = event_type, name, dimension
        self.value, self.node_id, self.timestamp = value, node_id, timestamp

    def __repr__(self) -> str:
        return f"SystemEvent({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


class FrameworkEvent:
    """A trace event: start_time, end_time, duration (microseconds), event_name, event_phase, event_args, node_id, file_type, pid, tid."""

    __slots__ = (
        "duration",
        "end_time",
        "event_args",
        "event_name",
        "event_phase",
        "file_type",
        "node_id",
        "phase",
        "pid",
        "start_time",
        "tid",
    )

    def __init__(self, **values: Any) -> None:
        self.phase = "X"
        for name, value in values.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        return f"FrameworkEvent({', '.join(f'{name}={getattr(self, name, None)!r}' for name in self.__slots__)})"


def system_events(rows: SystemColumns) -> list[SystemEvent]:
    """Return one object a row."""
    texts = (rows.type.decode(), rows.name.decode(), rows.dimension.decode())
    columns = (*texts, rows.value.tolist(), rows.node.decode(), rows.timestamp.tolist())
    return [SystemEvent(*values) for values in zip(*columns, strict=True)]


def framework_events(rows: EventColumns) -> list[FrameworkEvent]:
    """Return one object a row; event_args as in the file, step numbers of steps as text."""
    return list(_framework_events(rows))


def _framework_events(rows: EventColumns) -> Iterator[FrameworkEvent]:
    starts, ends = _whole(rows.start_us), _whole(rows.end_us)
    args = _arguments(rows)
    columns = (rows.name.decode(), rows.phase.decode(), rows.node.decode(), rows.kind.decode())
    for index, (name, phase, node, kind) in enumerate(zip(*columns, strict=True)):
        yield FrameworkEvent(
            start_time=starts[index],
            end_time=ends[index],
            duration=ends[index] - starts[index],
            event_name=name,
            event_phase=phase,
            event_args=args[index],
            node_id=node,
            file_type=kind,
            pid=int(rows.pid[index]),
            tid=int(rows.tid[index]),
        )


def _whole(moments: Any) -> list[float]:
    """Return ints if all are whole microseconds."""
    return (moments.astype(np.int64) if (moments == np.floor(moments)).all() else moments).tolist()  # type: ignore[no-any-return]


def _arguments(rows: EventColumns) -> list[dict[str, Any] | None]:
    known: dict[str, dict[str, Any]] = {text: json.loads(text) if text else {} for text in rows.args.values}
    found: list[dict[str, Any] | None] = []
    others = rows.args.decode().tolist()
    numbers = zip(rows.step.tolist(), rows.pid.tolist(), rows.tid.tolist(), strict=True)
    loaders = zip(rows.worker_id.tolist(), rows.num_workers.tolist(), rows.pin_memory.tolist(), strict=True)
    is_step = rows.name.mask(lambda name: STEP in name).tolist()
    for other, (step, pid, tid), (worker, workers, pinned), stepping in zip(
        others, numbers, loaders, is_step, strict=True
    ):
        args: dict[str, Any] = {}
        if pid >= 0:
            args["pid"] = pid
        if tid >= 0:
            args["thread_id"] = tid
        if step >= 0:
            args["step_num"] = str(step) if stepping else step
        if workers >= 0:
            args |= {"worker_id": worker, "num_workers": workers}
        if pinned >= 0:
            args["pin_memory"] = bool(pinned)
        args |= known.get(other, {})
        found.append(args or None)
    return found


def system_columns(events: Sequence[Any]) -> SystemColumns:
    """Return columns of objects with the attributes of SystemEvent."""
    return SystemColumns(
        np.asarray([event.timestamp for event in events], np.float64),
        np.asarray([event.value for event in events], np.float64),
        Category.of(event.node_id for event in events),
        Category.of(event.type for event in events),
        Category.of(event.name or "" for event in events),
        Category.of(event.dimension or "" for event in events),
    )


KINDS = {
    "HorovodMetrics": "horovod_timeline",
    "SMDataParallelMetrics": "smdataparallel_timeline",
    "": "horovod_timeline",
}


def event_columns(events: Sequence[Any]) -> EventColumns:
    """Return columns of objects with the attributes of FrameworkEvent (or of the old library's events)."""
    args = [event.event_args if isinstance(getattr(event, "event_args", None), dict) else {} for event in events]
    files = [getattr(event, "file_type", "pythontimeline") for event in events]
    return EventColumns(
        np.asarray([event.start_time for event in events], np.float64),
        np.asarray([event.end_time - event.start_time for event in events], np.float64),
        Category.of(event.event_name for event in events),
        Category.of(event.event_phase for event in events),
        Category.of(event.node_id or "" for event in events),
        Category.of(KINDS.get(kind, kind) for kind in files),
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
