"""`MergedTimeline`: one trace of a job, or a part of it, for Perfetto and chrome://tracing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sm_profiler.analysis.readers import ProfileLocation, ends_with, open_profile, step_interval
from sm_profiler.analysis.selection import event_rows, system_rows
from sm_profiler.analysis.timeline_events import (
    LOW_GPU,
    Record,
    TrackIds,
    clock_record,
    counter_section,
    low_gpu_section,
    merge_by_time,
    python_section,
    read_clocks,
    span_section,
)
from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.formats import layout
from sm_profiler.printable import logger_for
from sm_profiler.source import ProfileSource
from sm_profiler.storage import open_storage

_log = logger_for(__name__)
_CHUNK = 10_000
_LOW_GPU_FILTER: Mapping[str, Sequence[float]] = {"lowgpu": ()}


class MergeUnit(Enum):
    """Unit of the start and end of a merged timeline."""

    TIME = "time"
    STEP = "step"


class MergedTimeline:
    """Writer of a trace with the steps, phases, data loading, operators and system metrics of a job.

    Attributes:
        source: the profile.
        path: folder or s3:// URI of the profile.
        out_dir: folder or s3:// URI that traces are written to.
        file_suffix_filter: suffixes of the trace files to include, or None.
    """

    def __init__(
        self,
        path: ProfileLocation,
        file_suffix_filter: Sequence[str] | None = None,
        output_directory: str | None = None,
    ) -> None:
        """Open a profile.

        Args:
            path: a folder, an s3:// URI, the name of a training job, or an open source.
            file_suffix_filter: include only events of trace files whose names end with one of these
                (`pythontimeline.json` …); default: all.
            output_directory: folder or s3:// URI for the trace; default: the profile's.

        Raises:
            SourceError: the profile does not exist or cannot be reached.
        """
        self.source = open_profile(path)
        self.path = self.source.uri
        self.out_dir = str(output_directory) if output_directory is not None else self.path
        self.file_suffix_filter = file_suffix_filter

    def file_name(self, end_timestamp_in_us: float) -> str:
        """Return the path of the trace of a range that ends at this time, microseconds since the epoch."""
        return f"{self.out_dir.rstrip('/')}/{int(end_timestamp_in_us)}_merged_timeline.json"

    def merge_timeline(
        self,
        start: float,
        end: float,
        unit: MergeUnit | str = MergeUnit.TIME,
        sys_metrics_filter: Mapping[str, Sequence[float]] | None = _LOW_GPU_FILTER,
    ) -> str:
        """Write a trace of a part of the job.

        Args:
            start: start of the part, microseconds since the epoch or a step.
            end: end of the part, microseconds since the epoch, or the step before which it ends.
            unit: MergeUnit.TIME or MergeUnit.STEP (or "time", "step").
            sys_metrics_filter: {"lowgpu": (50,)} adds the system metrics as counters and marks the moments at which a
                GPU's utilization was below 50 percent; {"lowgpu": ()} uses 85 percent. None or {} leaves both out.

        Returns:
            Path or s3:// URI of the trace, a JSON array of trace events.

        Raises:
            ConfigError: the unit is not valid, or the part ends before it starts.
            SourceError: a step was not recorded, or the trace cannot be written.
        """
        try:
            unit = MergeUnit(unit)
        except ValueError as error:
            raise ConfigError(f"{unit!r} is not a unit of a timeline; use one of: time, step") from error
        if start > end:
            raise ConfigError(f"the part of the timeline starts at {start:.16g}, after its end at {end:.16g}")
        begin_us, end_us = float(start), float(end)
        if unit is MergeUnit.STEP:
            begin_us, end_us = step_interval(self.source.events(), int(start), int(end))
            if not end_us:
                raise SourceError(f"step {int(start)} or {int(end)} was not recorded")
        records = timeline_records(
            self.source,
            begin_us,
            end_us,
            file_suffix_filter=self.file_suffix_filter,
            sys_metrics_filter=sys_metrics_filter,
        )
        name = self.file_name(end_us)
        write_records(records, name)
        _log.info("Merged timeline saved at: %s", name)
        return name


def timeline_records(
    source: ProfileSource,
    start_us: float | None = None,
    end_us: float | None = None,
    *,
    file_suffix_filter: Sequence[str] | None = None,
    sys_metrics_filter: Mapping[str, Sequence[float]] | None = _LOW_GPU_FILTER,
) -> Iterator[Record]:
    """Yield the records of a trace: first those that name processes and tracks, then all others sorted by time.

    Args:
        source: the profile.
        start_us: start of the part, microseconds since the epoch; default: the start of the job.
        end_us: end of the part, microseconds since the epoch; default: the end of the job.
        file_suffix_filter: as in `MergedTimeline`.
        sys_metrics_filter: as in `MergedTimeline.merge_timeline`.
    """
    start_us, end_us = -np.inf if start_us is None else start_us, np.inf if end_us is None else end_us
    tracks = TrackIds()
    events = source.events()
    rows = event_rows(events, start_us, end_us)
    if file_suffix_filter is not None:
        rows &= events.kind.mask(lambda kind: any(ends_with(kind, suffix) for suffix in file_suffix_filter))
    events = events[rows]
    clocks = read_clocks(source.metadata(), events.node.present())
    parsed = (layout.parse_path(info.key) for info in source.other_files)
    stats = [each for each in parsed if isinstance(each, layout.PythonStats)]
    inside = [
        each for each in _one_per_window(stats) if each.window.start_us <= end_us and each.window.end_us >= start_us
    ]
    sections = [span_section(events, tracks, clocks), python_section(inside, tracks)]
    if sys_metrics_filter:
        system = source.system()
        system = system[system_rows(system, start_us, end_us)]
        sections.append(counter_section(system, tracks))
        if "lowgpu" in sys_metrics_filter:
            below = next(iter(sys_metrics_filter["lowgpu"]), LOW_GPU)
            sections.append(low_gpu_section(system, below, tracks))
    yield clock_record(clocks)
    for section in sections:
        yield from section.metadata
    yield from merge_by_time(section.records for section in sections)


def write_records(records: Iterable[Record], where: str) -> None:
    """Write a trace to a file or an s3:// URI; a failure leaves no partial file.

    Raises:
        SourceError: the trace cannot be written.
    """
    folder, _, name = where.rpartition("/")
    if where.startswith("s3://"):
        open_storage(folder).write(name, b"".join(_encoded(records)))
        return
    path = Path(where)
    partial = path.with_name(f"{path.name}{layout.TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.writelines(_encoded(records))
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise SourceError(f"{where} cannot be written: {error.strerror}") from error


def _encoded(records: Iterable[Record]) -> Iterator[bytes]:
    """Encode a JSON array, one record per line, in chunks of some thousand lines."""
    encoder = msgspec.json.Encoder()
    records = iter(records)
    yield b"[\n"
    between = b""
    while part := list(islice(records, _CHUNK)):
        yield between + b",\n".join(_line(encoder, _with_whole_times(record)) for record in part)
        between = b",\n"
    yield b"\n]\n"


def _line(encoder: msgspec.json.Encoder, record: Record) -> bytes:
    try:
        return encoder.encode(record)
    except UnicodeEncodeError:  # an unpaired surrogate; json escapes it
        return json.dumps(record).encode()


def _with_whole_times(record: Record) -> Record:
    """Convert whole microseconds to integers."""
    for key in ("ts", "dur"):
        value: Any = record.get(key)
        if isinstance(value, float) and value.is_integer():
            record[key] = int(value)
    return record


def _one_per_window(stats: Iterable[layout.PythonStats]) -> Iterator[layout.PythonStats]:
    """Yield one file per window; Pyinstrument writes two."""
    seen = set()
    for each in stats:
        key = (each.profiler, each.node, each.window)
        if key not in seen:
            seen.add(key)
            yield each
