"""One trace of a whole job, or a part of it, for Perfetto and chrome://tracing."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sm_profiler.analysis.readers import Where, ends_with, event_rows, open_profile, step_interval, system_rows
from sm_profiler.analysis.timeline_events import (
    LOW_GPU,
    Numbers,
    Record,
    clock_record,
    clocks_of,
    counter_part,
    in_time,
    low_gpu_part,
    python_part,
    span_part,
)
from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.formats import layout
from sm_profiler.source import ProfileSource
from sm_profiler.storage import open_storage

_log = logging.getLogger(__name__)
_CHUNK = 10_000
_LOW_GPU_FILTER: Mapping[str, Sequence[float]] = {"lowgpu": ()}


class MergeUnit(Enum):
    """What the limits of a merged timeline are given in."""

    TIME = "time"
    STEP = "step"


class MergedTimeline:
    """Writes the steps, phases, data loading, operators and system metrics of a job into one trace.

    Attributes:
        path: where the profile is.
        out_dir: the folder or s3:// URI that the trace is written to.
    """

    def __init__(
        self, path: Where, file_suffix_filter: Sequence[str] | None = None, output_directory: str | None = None
    ) -> None:
        """Open a profile.

        Args:
            path: a folder, an s3:// URI, the name of a training job, or an open source.
            file_suffix_filter: only events of trace files whose name ends so (`pythontimeline.json` …); all where None.
            output_directory: where the trace is written; beside the profile where None.

        Raises:
            SourceError: it does not exist or cannot be reached.
        """
        self.source = open_profile(path)
        self.path = self.source.uri
        self.out_dir = str(output_directory) if output_directory is not None else self.path
        self.file_suffix_filter = file_suffix_filter

    def file_name(self, end_timestamp_in_us: float) -> str:
        """Where the trace of a range that ends then is written."""
        return f"{self.out_dir.rstrip('/')}/{int(end_timestamp_in_us)}_merged_timeline.json"

    def merge_timeline(
        self,
        start: float,
        end: float,
        unit: MergeUnit | str = MergeUnit.TIME,
        sys_metrics_filter: Mapping[str, Sequence[float]] | None = _LOW_GPU_FILTER,
    ) -> str:
        """Write a part of the job and return where the trace is.

        Args:
            start: microseconds since the epoch, or a step.
            end: the same; the part ends with it, or just before that step begins.
            unit: MergeUnit.TIME or MergeUnit.STEP (or "time", "step").
            sys_metrics_filter: {"lowgpu": ()} adds the system metrics as counters, and marks the moments at which a GPU's
                use was below 85 percent, or below what stands in the tuple; None or {} leaves both out.

        Raises:
            ConfigError: the unit is none.
            SourceError: a step was not recorded, or the trace cannot be written.
        """
        try:
            unit = MergeUnit(unit)
        except ValueError as error:
            raise ConfigError(f"{unit!r} is no unit of a timeline; there are: time, step") from error
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
    """The records of a trace of the job: what names processes and rows first, then all others by time.

    Args:
        source: the profile.
        start_us: where the part begins, microseconds since the epoch; with the job where None.
        end_us: where it ends; with the job where None.
        file_suffix_filter: as in `MergedTimeline`.
        sys_metrics_filter: as in `MergedTimeline.merge_timeline`.
    """
    start_us, end_us = -np.inf if start_us is None else start_us, np.inf if end_us is None else end_us
    numbers = Numbers()
    events = source.events()
    rows = event_rows(events, start_us, end_us)
    if file_suffix_filter is not None:
        rows &= events.kind.mask(lambda kind: any(ends_with(kind, suffix) for suffix in file_suffix_filter))
    events = events[rows]
    clocks = clocks_of(source.metadata(), events.node.present())
    parsed = (layout.parse_path(info.key) for info in source.other_files)
    stats = [each for each in parsed if isinstance(each, layout.PythonStats)]
    inside = [each for each in _once(stats) if each.window.start_us <= end_us and each.window.end_us >= start_us]
    parts = [span_part(events, numbers, clocks), python_part(inside, numbers)]
    if sys_metrics_filter:
        system = source.system()
        system = system[system_rows(system, start_us, end_us)]
        parts.append(counter_part(system, numbers))
        if "lowgpu" in sys_metrics_filter:
            below = next(iter(sys_metrics_filter["lowgpu"]), LOW_GPU)
            parts.append(low_gpu_part(system, below, numbers))
    yield clock_record(clocks)
    for part in parts:
        yield from part.announced
    yield from in_time(part.records for part in parts)


def write_records(records: Iterable[Record], where: str) -> None:
    """Write a trace to a file or an s3:// URI, whole or not at all.

    Raises:
        SourceError: it cannot be written.
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
    """A JSON array, a record a line, some thousand lines at a time."""
    encoder = msgspec.json.Encoder()
    records = iter(records)
    yield b"[\n"
    between = b""
    while part := list(islice(records, _CHUNK)):
        yield between + b",\n".join(encoder.encode(_whole(record)) for record in part)
        between = b",\n"
    yield b"\n]\n"


def _whole(record: Record) -> Record:
    """Whole microseconds as whole numbers."""
    for key in ("ts", "dur"):
        value: Any = record.get(key)
        if isinstance(value, float) and value.is_integer():
            record[key] = int(value)
    return record


def _once(stats: Iterable[layout.PythonStats]) -> Iterator[layout.PythonStats]:
    """One of the files of each window: Pyinstrument writes two."""
    seen = set()
    for each in stats:
        key = (each.profiler, each.node, each.window)
        if key not in seen:
            seen.add(key)
            yield each
