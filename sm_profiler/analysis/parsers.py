"""Parsers of single files, for programs that read files one by one instead of a whole profile."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import msgspec

from sm_profiler.analysis.times import (
    TimeUnits,
    convert_utc_datetime_to_microseconds,
    convert_utc_timestamp_to_microseconds,
)
from sm_profiler.errors import SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.formats.event_objects import (
    ProcessInfo,
    ProfilerSystemEvent,
    ThreadInfo,
    TraceEvent,
    system_events,
    trace_events,
)
from sm_profiler.source import ProfileSource
from sm_profiler.source.profile import Options
from sm_profiler.storage import FileInfo, MissingFileError, open_storage

_NO_METADATA = ("", "0", "0")
_TIME = re.compile(r"[0-9]{1,18}")

_TIMESTAMP = re.compile(rb'"Timestamp"\s*:\s*(\d{10})')


def is_valid_tracefilename(filename: str) -> bool:
    """Return True for a trace file of the hook (`…/pevents/…/<end_us>_<node>_<kind>.json`)."""
    return filename.endswith(".json") and "pevents" in filename and len(filename.split("_")) >= 3  # the three parts


def is_valid_tfprof_tracefilename(filename: str) -> bool:
    """Return True for a trace of TensorFlow's profiler."""
    return filename.endswith("trace.json.gz") and f"tensorflow/{layout.DETAILED}" in filename


def validate_system_profiler_file(filename: str) -> bool:
    return _system_file(filename) is not None


def get_node_id_from_system_profiler_filename(filename: str) -> str | None:
    """Return the node of a system metrics file (`algo-1`); None for another file."""
    found = _system_file(filename)
    return found.node if found else None


def get_utctimestamp_us_since_epoch_from_system_profiler_file(filename: str) -> int | None:
    """Return the start of a system metrics file's minute, microseconds since the epoch; None for another file."""
    found = _system_file(filename)
    return found.at_us if found else None


def get_node_id_from_tracefilename(filename: str) -> str:
    """Return the process of a trace file (`0-algo-1`).

    For a trace of TensorFlow's profiler it comes from the metadata file; "" without one.
    """
    if is_valid_tracefilename(filename):
        return filename.rsplit("/", 1)[-1].split("_")[1]
    return read_tf_profiler_metadata_file(filename)[0]


def get_timestamp_from_tracefilename(filename: str) -> int:
    """Return the end of a trace file's last event, microseconds since the epoch; 0 if unknown."""
    if is_valid_tracefilename(filename):
        text = filename.rsplit("/", 1)[-1].split("_", maxsplit=1)[0]
        return _whole(text)
    return _whole(read_tf_profiler_metadata_file(filename)[2])


def read_tf_profiler_metadata_file(file_path: str) -> tuple[str, str, str]:
    """Read the metadata file next to a trace of TensorFlow's profiler.

    Returns:
        Node, start and end (microseconds since the epoch) as text; "", "0" and "0" without such a file.
    """
    if not is_valid_tfprof_tracefilename(file_path):
        return _NO_METADATA
    folder = "/".join(file_path.split("/")[:-4])
    try:
        names = sorted(_metadata_names(folder))
    except SourceError:
        return _NO_METADATA
    for name in names:
        parts = PurePosixPath(name).name.removesuffix(layout.METADATA_SUFFIX).split("_")
        if len(parts) == 3:  # node, start and end
            return parts[0], parts[1], parts[2].split(".")[0]
    return _NO_METADATA


def is_s3(path: str) -> tuple[bool, str | None, str | None]:
    """Split an s3:// URI.

    Returns:
        True, the bucket and the key; False, None and None for any other path.
    """
    if not path.startswith("s3://"):
        return False, None, None
    bucket, _, key = path.removeprefix("s3://").partition("/")
    return True, bucket, key


def _whole(text: str) -> int:
    """Convert the digits of a time in a file name; 0 if it is not one."""
    return int(text) if _TIME.fullmatch(text) else 0


def _metadata_names(folder: str) -> Iterator[str]:
    for info in open_storage(folder).list(""):
        if info.key.endswith(layout.METADATA_SUFFIX):
            yield info.key


def _system_file(filename: str) -> layout.SystemFile | None:
    _, found, rest = filename.rpartition("system/")
    parsed = layout.parse_path(f"system/{rest}") if found else None
    return parsed if isinstance(parsed, layout.SystemFile) else None


__all__ = [
    "HorovodProfilerEvents", "ProcessInfo", "ProfilerSystemEvent", "ProfilerSystemEvents", "SMDataParallelProfilerEvents",
    "SMProfilerEvents", "SystemProfilerEventParser", "TensorboardProfilerEvents", "ThreadInfo", "TraceEvent", "TraceEventParser",
]  # fmt: skip


class TraceEventParser:
    """Spans of trace files that are read one after the other.

    Attributes:
        type: the `file_type` of the spans; "" for the one that their file determines.
    """

    kind: ClassVar[str] = layout.PYTHON_TIMELINE

    def __init__(self, type: str = "") -> None:  # the known name
        self.type = type
        self._trace_events: list[TraceEvent] = []
        self._processes: dict[Any, ProcessInfo] = {}
        self._files = _MemoryStorage()

    def read_events_from_file(self, tracefile: str | os.PathLike[str]) -> None:
        """Add the spans of a file; damaged records are skipped.

        Args:
            tracefile: path of a file on disk.

        Raises:
            SourceError: the file cannot be opened.
        """
        path = os.fspath(tracefile)
        data, name = _read_file(path), Path(path).name
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
        """Add the spans of a parsed trace.

        Args:
            trace_json_data: the trace's records, a dictionary each.
            node_id: the process, `0-algo-1`.
        """
        name = _trace_name(f"{len(self._files.data)}_{node_id}_{self.kind}.json", self.kind)
        self._take(f"{layout.TRACE_FOLDER}/h/{name}", msgspec.json.encode(trace_json_data), layout.shown_node(node_id))

    def get_all_events(self) -> list[TraceEvent]:
        """Return all spans in the order of the files and of their lines."""
        return self._trace_events

    def get_events_start_time_sorted(self) -> list[TraceEvent]:
        return sorted(self._trace_events, key=lambda event: event.start_time)

    def get_events_end_time_sorted(self) -> list[TraceEvent]:
        return sorted(self._trace_events, key=lambda event: event.end_time)

    def get_events_within_time_range(
        self, start_time: float, end_time: float, unit: TimeUnits = TimeUnits.MICROSECONDS
    ) -> list[TraceEvent]:
        """Return the spans that overlap a time range, both ends included; times since the epoch, in `unit`."""
        start, end = (convert_utc_timestamp_to_microseconds(time, unit) for time in (start_time, end_time))
        return [event for event in self._trace_events if event.end_time >= start and event.start_time <= end]

    def get_events_within_range(self, start_time: datetime, end_time: datetime) -> list[TraceEvent]:
        """Return the spans that overlap the time between two datetimes."""
        start, end = (convert_utc_datetime_to_microseconds(time) for time in (start_time, end_time))
        return self.get_events_within_time_range(start, end)

    def get_processes(self) -> dict[Any, ProcessInfo]:
        """Return the processes (phases) that the files declare, by number."""
        return self._processes

    def get_process_info(self, process_id: Any) -> ProcessInfo:
        """Return the process with a number.

        Raises:
            KeyError: no file declares it.
        """
        return self._processes[process_id]

    def clear_events(self) -> None:
        self._trace_events = []

    def _take(self, key: str, data: bytes, node: str) -> None:
        events: EventColumns = self._files.events(key, data)
        self._processes.setdefault(0, ProcessInfo(0, "Unknown"))  # the process of a trace's start record
        found = trace_events(events[~events.instants])
        for event in found:
            known = self._processes.setdefault(event.phase_pid, ProcessInfo(event.phase_pid, event.event_phase))
            if known.name != event.event_phase:  # another file uses the same number
                known = ProcessInfo(event.phase_pid, event.event_phase)
            known.add_thread(event.tid, f"{node}_{event.tid}")
            event.process_info, event.node_id = known, node
            event.file_type = self.type or event.file_type
        self._trace_events += found


class SMProfilerEvents(TraceEventParser):
    """Spans of the hook's own timelines."""

    def __init__(self, type: str = "PythontimelineMetrics") -> None:  # the known name
        super().__init__(type)


class TensorboardProfilerEvents(TraceEventParser):
    """Spans of traces of TensorFlow's and PyTorch's profilers."""

    kind = layout.DETAILED_TRACE

    def __init__(self) -> None:
        super().__init__("TFProfilerMetrics")


class HorovodProfilerEvents(TraceEventParser):
    """Spans of Horovod's timelines."""

    kind = layout.HOROVOD_TIMELINE

    def __init__(self) -> None:
        super().__init__("HorovodMetrics")


class SMDataParallelProfilerEvents(TraceEventParser):
    """Spans of SMDDP's timelines."""

    kind = layout.SMDATAPARALLEL_TIMELINE

    def __init__(self) -> None:
        super().__init__("SMDataParallelMetrics")


class SystemProfilerEventParser:
    """Measurements of system metrics files that are read one after the other."""

    def __init__(self) -> None:
        self._events: list[ProfilerSystemEvent] = []
        self._files = _MemoryStorage()

    def read_events_from_file(self, eventfile: str | os.PathLike[str]) -> None:
        """Add the measurements of a file; damaged records are skipped.

        Args:
            eventfile: path of a file on disk.

        Raises:
            SourceError: the file cannot be opened.
        """
        path = os.fspath(eventfile)
        node = get_node_id_from_system_profiler_filename(path) or "algo-1"
        data = _read_file(path)
        first = _TIMESTAMP.search(data)  # the name, which may be any, has nothing to do with the time of the rows
        minute = first[1].decode() if first else "1000000000"
        key = f"{layout.SYSTEM_FOLDER}/{len(self._files.data)}/{minute}.{node}.json"
        self._events += system_events(self._files.system(key, data))

    def read_events_from_json_data(self, system_profiler_json_data: Sequence[dict[str, Any]]) -> None:
        """Add parsed measurements, a dictionary each.

        Raises:
            SourceError: a key is missing.
        """
        for record in system_profiler_json_data:
            self.read_event_from_dict(record)

    def read_event_from_dict(self, event: dict[str, Any]) -> None:
        """Add one parsed measurement.

        Args:
            event: a dictionary with Type, Dimension, Value, NodeId and Timestamp (seconds since the epoch), and usually
                Name.

        Raises:
            SourceError: a key is missing.
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
        """Return the measurements in a time range, both ends included.

        Args:
            start_time: since the epoch, in `unit`.
            end_time: since the epoch, in `unit`.
            unit: unit of the two times.
            event_type: keep only this type (cpu, gpu, memory, i/o, network).
        """
        start, end = (convert_utc_timestamp_to_microseconds(time, unit) / 1e6 for time in (start_time, end_time))
        return [each for each in self._events if start <= each.timestamp <= end and event_type in {None, each.type}]

    def get_all_events(self) -> list[ProfilerSystemEvent]:
        """Return all measurements in the order of the files and of their lines."""
        return self._events

    def clear_events(self) -> None:
        self._events = []


class ProfilerSystemEvents(SystemProfilerEventParser):
    """Another name of `SystemProfilerEventParser`."""


def _trace_name(name: str, kind: str) -> str:
    """Return a valid file name of the timeline `kind`; the given name if it is one."""
    parsed = layout.parse_path(f"{layout.TRACE_FOLDER}/h/{name}")
    return name if isinstance(parsed, layout.TraceFile) else f"0_{name.replace('_', '-')}_{kind}.json"


class _MemoryStorage:
    """Storage in memory that feeds single files to a `ProfileSource`.

    Attributes:
        uri: a name for messages.
        parallel_reads: number of useful concurrent reads.
        data: contents by key, a path below a profiler output.
    """

    uri = "memory"
    parallel_reads = 1

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self._source: ProfileSource | None = None

    def system(self, key: str, data: bytes) -> SystemColumns:
        columns: SystemColumns = SystemColumns.concat([batch[0] for batch in self._new(key, data)])
        return columns

    def events(self, key: str, data: bytes) -> EventColumns:
        """Add a file and return its events, including those that began in an earlier file."""
        columns: EventColumns = EventColumns.concat([batch[1] for batch in self._new(key, data)])
        return columns

    def _new(self, key: str, data: bytes) -> Iterator[tuple[SystemColumns, EventColumns]]:
        self.data[key] = data
        if self._source is None:
            self._source = ProfileSource(self, Options(cache=False, processes=1, progress=False))
        self._source.refresh()
        for batch in self._source.batches():
            yield batch.system, batch.events

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[FileInfo]:
        del start_after  # files arrive in any order of time, so each listing is complete
        for key in sorted(self.data):
            if key.startswith(prefix):
                yield FileInfo(key, len(self.data[key]), 0.0, str(hash(self.data[key])))

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        try:
            return self.data[key][start:end]
        except KeyError:
            raise MissingFileError(f"{key} does not exist") from None

    def write(self, key: str, data: bytes) -> None:
        self.data[key] = data

    def exists(self, key: str) -> bool:
        return key in self.data


def _read_file(path: str) -> bytes:
    """Return the contents of a file on disk.

    Raises:
        SourceError: the file cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
