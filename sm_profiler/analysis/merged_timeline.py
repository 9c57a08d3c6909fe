"""`MergedTimeline`: one trace of a job, or a part of it, for Perfetto and chrome://tracing."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from pathlib import Path

import attrs
import numpy as np

from sm_profiler.analysis.readers import (
    ProfileLocation,
    ends_with,
    event_rows,
    open_profile,
    operators_once,
    step_interval,
    system_rows,
    tick_times,
)
from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.formats.event_objects import event_arguments
from sm_profiler.formatting import utc
from sm_profiler.printable import logger_for
from sm_profiler.source import ProfileSource
from sm_profiler.storage import open_storage
from sm_profiler.timeline import Clock, TimelineWriter, read_clocks, timeline_file

_log = logger_for(__name__)
LOW_GPU = 85.0  # percent; the default threshold of the filter `lowgpu`
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
        name = self.file_name(end_us)
        with _written(name) as path:
            self._write(path, begin_us, end_us, sys_metrics_filter or {})
        _log.info("Merged timeline saved at: %s", name)
        return name

    def _write(self, path: Path, start_us: float, end_us: float, metrics: Mapping[str, Sequence[float]]) -> None:
        events = operators_once(self.source.events())
        rows = event_rows(events, start_us, end_us)
        if self.file_suffix_filter is not None:
            suffixes = self.file_suffix_filter
            rows &= events.kind.mask(lambda kind: any(ends_with(kind, suffix) for suffix in suffixes))
        if not rows.any() and self.source.first_timestamp_us is not None:
            first, last = (
                utc((us or 0) / 1e6) for us in (self.source.first_timestamp_us, self.source.last_timestamp_us)
            )
            _log.warning(
                "the timeline has no events: the part holds none; the profile lies between %s and %s", first, last
            )
        clocks = read_clocks(self.source.metadata())
        events = _on_one_clock(events[rows], clocks)
        with timeline_file(path, self.source.first_timestamp_us or 0, event_arguments, absolute=True) as writer:
            writer.add_events(events)
            for stats in _windows(self.source, start_us, end_us):
                window = stats.window
                step = layout.NO_STEP if window.start_step is None else window.start_step
                at, until = (_nanoseconds(writer, us) for us in (window.start_us, window.end_us))
                writer.add_slice(
                    layout.shown_node(stats.node), f"Python profiling: {stats.profiler}",
                    f"{stats.profiler} {window.start_mode} {step}", "python", at, until - at, {"file": stats.path},
                )  # fmt: skip
            if metrics:
                system = self.source.system()
                system = system[system_rows(system, start_us, end_us)]
                writer.add_system(system)
                if "lowgpu" in metrics:
                    _mark_low_gpu(writer, system, next(iter(metrics["lowgpu"]), LOW_GPU))
            writer.finish(self.source.metadata(), self.source.origin)


def _nanoseconds(writer: TimelineWriter, us: float) -> int:
    return round((us - writer.origin_us) * 1e3)


def _on_one_clock(events: EventColumns, clocks: Mapping[str, Clock]) -> EventColumns:
    offsets = np.array([clocks.get(node, Clock()).offset_us for node in events.node.values] or [0.0])
    return attrs.evolve(events, start_us=events.start_us - offsets[events.node.codes]) if offsets.any() else events


def _windows(source: ProfileSource, start_us: float, end_us: float) -> list[layout.PythonStats]:
    """Return one file for each window of a Python profiler in a time range; Pyinstrument writes two."""
    parsed = (layout.parse_path(info.key) for info in source.other_files)
    found = {
        (stats.profiler, stats.node, stats.window): stats
        for stats in parsed
        if isinstance(stats, layout.PythonStats) and stats.window.start_us <= end_us and stats.window.end_us >= start_us
    }
    return sorted(found.values(), key=lambda stats: stats.window.start_us)


def _mark_low_gpu(writer: TimelineWriter, system: SystemColumns, below: float) -> None:
    """Mark each tick at which a GPU's utilization was below a threshold in percent."""
    rows = system[system.dimension.mask("GPUUtilization")]
    low = np.isfinite(rows.value) & (rows.value < below)
    ticks, rows = tick_times(rows)[low], rows[low]
    order = np.argsort(ticks, kind="stable")
    names = [f"{node} {name}" for node, name in zip(rows.node.decode(), rows.name.decode(), strict=True)]
    edges = np.flatnonzero(np.diff(ticks[order], prepend=-1, append=-1))
    for first, last in pairwise(edges.tolist()):
        args = {names[row]: float(rows.value[row]) for row in order[first:last].tolist()}
        at = _nanoseconds(writer, float(ticks[order[first]]))
        writer.add_mark("low GPU utilization", "sys_metrics_bottlenecks", at, args)


@contextlib.contextmanager
def _written(where: str) -> Iterator[Path]:
    """Give the path of a file to write, and move it to a path or s3:// URI; a failure leaves no partial file there.

    Raises:
        SourceError: the file cannot be written.
    """
    folder, _, name = where.rpartition("/")
    if where.startswith("s3://"):
        with tempfile.TemporaryDirectory() as scratch:
            yield Path(scratch, name)
            open_storage(folder).write(name, Path(scratch, name).read_bytes())
        return
    path = Path(where)
    partial = path.with_name(f"{path.name}{layout.TEMPORARY}")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        raise SourceError(f"{where} cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
