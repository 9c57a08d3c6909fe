"""Parsers of single files, for code that reads files one by one instead of a whole profile."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from sm_profiler.analysis.events import (
    ProcessInfo,
    ProfilerSystemEvent,
    ThreadInfo,
    TraceEvent,
    system_events,
    trace_events,
)
from sm_profiler.analysis.file_names import (
    get_node_id_from_system_profiler_filename,
    get_node_id_from_tracefilename,
    read_tf_profiler_metadata_file,
)
from sm_profiler.analysis.single_files import SingleFiles, read_bytes
from sm_profiler.analysis.times import (
    TimeUnits,
    convert_utc_datetime_to_microseconds,
    convert_utc_timestamp_to_microseconds,
)
from sm_profiler.errors import SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.columns import EventColumns

__all__ = [
    "HorovodProfilerEvents", "ProcessInfo", "ProfilerSystemEvent", "ProfilerSystemEvents", "SMDataParallelProfilerEvents",
    "SMProfilerEvents", "SystemProfilerEventParser", "TensorboardProfilerEvents", "ThreadInfo", "TraceEvent", "TraceEventParser",
]  # fmt: skip


class TraceEventParser:
    """The spans of trace files, read one after the other."""

    kind: ClassVar[str] = layout.PYTHON_TIMELINE

    def __init__(self, type: str = "") -> None:  # noqa: A002 - the known name
        self.type = type
        self._trace_events: list[TraceEvent] = []
        self._processes: dict[Any, ProcessInfo] = {}
        self._files = SingleFiles()

    def read_events_from_file(self, tracefile: str | os.PathLike[str]) -> None:
        """Add the spans of a file; what cannot be read of it is left out.

        Raises:
            SourceError: it cannot be opened.
        """
        path = os.fspath(tracefile)
        data, name = read_bytes(path), Path(path).name
        if self.kind != layout.DETAILED_TRACE:
            self._take(
                f"{layout.TRACE_FOLDER}/h/{_trace_name(name, self.kind)}",
                data,
                layout.shown_node(get_node_id_from_tracefilename(path)),
            )
            return
        folder = f"{layout.FRAMEWORK}/tensorflow/{layout.DETAILED}/{len(self._files.data):010d}/000000000"
        node, start, end = read_tf_profiler_metadata_file(path)
        if node:
            self._files.data[f"{folder}/{node}_{start}_{end}{layout.METADATA_SUFFIX}"] = b""
        self._take(f"{folder}/{name}", data, name.split(".")[0])

    def read_events_from_json_data(self, trace_json_data: Sequence[dict[str, Any]], node_id: str) -> None:
        """Add the spans of a trace that is parsed already."""
        name = _trace_name(f"{len(self._files.data)}_{node_id}_{self.kind}.json", self.kind)
        self._take(f"{layout.TRACE_FOLDER}/h/{name}", msgspec.json.encode(trace_json_data), layout.shown_node(node_id))

    def get_all_events(self) -> list[TraceEvent]:
        """All spans, in the order of the files and of their lines."""
        return self._trace_events

    def get_events_start_time_sorted(self) -> list[TraceEvent]:
        """All spans by their start."""
        return sorted(self._trace_events, key=lambda event: event.start_time)

    def get_events_end_time_sorted(self) -> list[TraceEvent]:
        """All spans by their end."""
        return sorted(self._trace_events, key=lambda event: event.end_time)

    def get_events_within_time_range(
        self, start_time: float, end_time: float, unit: TimeUnits = TimeUnits.MICROSECONDS
    ) -> list[TraceEvent]:
        """The spans that lie in a time range or reach into it; times since the epoch, in `unit`."""
        start, end = (convert_utc_timestamp_to_microseconds(time, unit) for time in (start_time, end_time))
        return [event for event in self._trace_events if event.end_time >= start and event.start_time <= end]

    def get_events_within_range(self, start_time: datetime, end_time: datetime) -> list[TraceEvent]:
        """The spans that lie between two datetimes or reach into the time between them."""
        start, end = (convert_utc_datetime_to_microseconds(time) for time in (start_time, end_time))
        return self.get_events_within_time_range(start, end)

    def get_processes(self) -> dict[Any, ProcessInfo]:
        """The processes (phases) that the files announce, by number."""
        return self._processes

    def get_process_info(self, process_id: Any) -> ProcessInfo:
        """The process of that number."""
        return self._processes[process_id]

    def clear_events(self) -> None:
        """Forget the spans."""
        self._trace_events = []

    def _take(self, key: str, data: bytes, node: str) -> None:
        events: EventColumns = self._files.events(key, data)
        self._processes.setdefault(0, ProcessInfo(0, "Unknown"))  # the process under which a trace says when it began
        found = trace_events(events[~events.instants])
        for event in found:
            known = self._processes.setdefault(event.phase_pid, ProcessInfo(event.phase_pid, event.event_phase))
            if known.name != event.event_phase:  # another file's process of the same number
                known = ProcessInfo(event.phase_pid, event.event_phase)
            known.add_thread(event.tid, f"{node}_{event.tid}")
            event.process_info, event.node_id = known, node
            event.file_type = self.type or event.file_type
        self._trace_events += found


class SMProfilerEvents(TraceEventParser):
    """The spans of a hook's own timelines."""

    def __init__(self, type: str = "PythontimelineMetrics") -> None:  # noqa: A002 - the known name
        super().__init__(type)


class TensorboardProfilerEvents(TraceEventParser):
    """The spans of traces of TensorFlow's and PyTorch's profilers."""

    kind = layout.DETAILED_TRACE

    def __init__(self) -> None:
        super().__init__("TFProfilerMetrics")


class HorovodProfilerEvents(TraceEventParser):
    """The spans of Horovod's timelines."""

    kind = layout.HOROVOD_TIMELINE

    def __init__(self) -> None:
        super().__init__("HorovodMetrics")


class SMDataParallelProfilerEvents(TraceEventParser):
    """The spans of SMDDP's timelines."""

    kind = layout.SMDATAPARALLEL_TIMELINE

    def __init__(self) -> None:
        super().__init__("SMDataParallelMetrics")


class SystemProfilerEventParser:
    """The measurements of files of system metrics, read one after the other."""

    def __init__(self) -> None:
        self._events: list[ProfilerSystemEvent] = []
        self._files = SingleFiles()

    def read_events_from_file(self, eventfile: str | os.PathLike[str]) -> None:
        """Add the measurements of a file; what cannot be read of it is left out.

        Raises:
            SourceError: it cannot be opened.
        """
        path = os.fspath(eventfile)
        node = get_node_id_from_system_profiler_filename(path) or "algo-1"
        key = f"{layout.SYSTEM_FOLDER}/h/{1_000_000_000 + len(self._files.data)}.{node}.json"
        self._events += system_events(self._files.system(key, read_bytes(path)))

    def read_events_from_json_data(self, system_profiler_json_data: Sequence[dict[str, Any]]) -> None:
        """Add measurements that are parsed already, one dictionary each."""
        for record in system_profiler_json_data:
            self.read_event_from_dict(record)

    def read_event_from_dict(self, event: dict[str, Any]) -> None:
        """Add one measurement.

        Raises:
            SourceError: it is none.
        """
        try:
            kind, dimension, value, node, at = (
                event[key] for key in ("Type", "Dimension", "Value", "NodeId", "Timestamp")
            )
        except KeyError as error:
            raise SourceError(f"a system metric has no {error.args[0]}") from error
        self._events.append(ProfilerSystemEvent(kind, event.get("Name"), dimension, value, node, at))

    def get_events_within_time_range(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
        event_type: str | None = None,
    ) -> list[ProfilerSystemEvent]:
        """The measurements of a time range, both ends included; times since the epoch, in `unit`."""
        start, end = (convert_utc_timestamp_to_microseconds(time, unit) / 1e6 for time in (start_time, end_time))
        return [each for each in self._events if start <= each.timestamp <= end and event_type in {None, each.type}]

    def get_all_events(self) -> list[ProfilerSystemEvent]:
        """All measurements, in the order of the files and of their lines."""
        return self._events

    def clear_events(self) -> None:
        """Forget the measurements."""
        self._events = []


class ProfilerSystemEvents(SystemProfilerEventParser):
    """The same under its other name."""


def _trace_name(name: str, kind: str) -> str:
    """A name that says which timeline a file is, even if its own does not."""
    parsed = layout.parse_path(f"{layout.TRACE_FOLDER}/h/{name}")
    return name if isinstance(parsed, layout.TraceFile) else f"0_{name.replace('_', '-')}_{kind}.json"
