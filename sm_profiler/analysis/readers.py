"""Readers of a job's system metrics and trace events, as lists of objects and as columns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sm_profiler.analysis.events import ProfilerSystemEvent, TraceEvent, system_events, trace_events
from sm_profiler.analysis.selection import event_rows, system_rows
from sm_profiler.analysis.times import TimeUnits, convert_utc_timestamp_to_microseconds
from sm_profiler.errors import SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.source import ProfileSource, open_source
from sm_profiler.source.cache import is_writing
from sm_profiler.source.item import TIMELINES, Item
from sm_profiler.storage import open_storage

ProfileLocation = str | os.PathLike[str] | ProfileSource
"""Location of a profile: a folder, an s3:// URI, the name of a training job, or an open source."""


def open_profile(location: ProfileLocation) -> ProfileSource:
    """Open a profile.

    A folder or s3:// URI may still be empty, so that a reader can be made when the job starts.

    Args:
        location: a folder, an s3:// URI, the name of a training job, or an open source.

    Raises:
        SourceError: the location does not exist or cannot be reached.
    """
    if isinstance(location, ProfileSource):
        return location
    try:
        return open_source(location)
    except SourceError:
        text = os.fspath(location)
        if text.startswith("s3://") or Path(text).is_dir():
            return ProfileSource(open_storage(text))  # a job that has just started
        raise


class MetricsReaderBase:
    """Base class of both readers.

    Attributes:
        source: the profile.
    """

    def __init__(self, location: ProfileLocation, use_in_memory_cache: bool = False) -> None:  # the known signature
        """Open a profile.

        Args:
            location: a folder, an s3:// URI, the name of a training job, or an open source.
            use_in_memory_cache: keep the columns until new files appear.

        Raises:
            SourceError: the location does not exist or cannot be reached.
        """
        self.source = open_profile(location)
        self._keep = use_in_memory_cache
        self._kept: tuple[tuple[Item, ...], Any] | None = None

    def refresh_event_file_list(self) -> None:
        """Update the list of files.

        Raises:
            SourceError: the folder or bucket cannot be listed.
        """
        self.source.refresh()

    def get_timestamp_of_first_available_file(self) -> int:
        """Return the time of the first file, microseconds since the epoch; 0 if there is none yet."""
        return min((item.at_us for item in self._items()), default=0)

    def get_timestamp_of_latest_available_file(self) -> int:
        """Return the time of the latest file, microseconds since the epoch; 0 if there is none yet."""
        return max((item.at_us for item in self._items()), default=0)

    def get_events_by_step(
        self,
        start_step: int,
        end_step: int,
        event_type: str | None = None,
        file_suffix_filter: Sequence[str] | None = None,
    ) -> list[Any]:
        """Return what happened from the start of one step to just before the start of another.

        Args:
            start_step: number of the first step.
            end_step: number of the step before whose start the range ends.
            event_type: as in `get_events`.
            file_suffix_filter: as in `get_events`.

        Returns:
            A list as `get_events` returns it; empty if either step was not recorded.
        """
        start_us, end_us = step_interval(open_events(self.source), start_step, end_step)
        return self.get_events(start_us, end_us, TimeUnits.MICROSECONDS, event_type, file_suffix_filter)

    def get_events(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
        event_type: str | None = None,
        file_suffix_filter: Sequence[str] | None = None,
    ) -> list[Any]:
        """Return what happened in a time range."""
        raise NotImplementedError

    def _items(self) -> list[Item]:
        raise NotImplementedError

    def _read(self) -> Any:
        raise NotImplementedError

    @property
    def reusable_columns(self) -> bool:
        """True if the caller of `columns` may overwrite them: no cache keeps them or is writing them to disk."""
        return not self._keep and not is_writing()

    def columns(self) -> Any:
        """Return everything recorded so far as columns, from the memory cache if the reader has one."""
        if not self._keep:
            return self._read()
        items = tuple(self._items())
        if self._kept is None or self._kept[0] != items:
            self._kept = items, self._read()
        return self._kept[1]


class SystemMetricsReader(MetricsReaderBase):
    """Reader of system metrics."""

    def get_events(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
        event_type: str | None = None,
        file_suffix_filter: Sequence[str] | None = None,
    ) -> list[ProfilerSystemEvent]:
        """Return the measurements in a time range, both ends included.

        Args:
            start_time: since the epoch, in `unit`.
            end_time: since the epoch, in `unit`.
            unit: unit of the two times.
            event_type: keep only this type (cpu, gpu, memory, i/o, network).
            file_suffix_filter: keep only files whose names end with one of these.
        """
        if end_time >= convert_back(self.get_timestamp_of_latest_available_file(), unit):
            self.refresh_event_file_list()
        system: SystemColumns = self.columns()
        rows = system_rows(
            system,
            convert_utc_timestamp_to_microseconds(start_time, unit),
            convert_utc_timestamp_to_microseconds(end_time, unit),
        )
        if event_type is not None:
            rows &= system.type.mask(event_type)
        if file_suffix_filter is not None:
            rows &= system.node.mask(lambda node: any(f"{node}.json".endswith(end) for end in file_suffix_filter))
        return system_events(system[rows])

    def _items(self) -> list[Item]:
        return [item for item in self.source.files if item.is_system]

    def _read(self) -> SystemColumns:
        return self.source.system()


class AlgorithmMetricsReader(MetricsReaderBase):
    """Reader of trace events."""

    def get_events(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
        event_type: str | None = None,  # trace events have no types
        file_suffix_filter: Sequence[str] | None = None,
    ) -> list[TraceEvent]:
        """Return the spans that overlap a time range, both ends included.

        Args:
            start_time: since the epoch, in `unit`.
            end_time: since the epoch, in `unit`.
            unit: unit of the two times.
            event_type: ignored; trace events have no types.
            file_suffix_filter: keep only files whose names end with one of these.
        """
        if end_time >= convert_back(self.get_timestamp_of_latest_available_file(), unit):
            self.refresh_event_file_list()
        events: EventColumns = self.columns()
        rows = ~events.instants & event_rows(
            events,
            convert_utc_timestamp_to_microseconds(start_time, unit),
            convert_utc_timestamp_to_microseconds(end_time, unit),
        )
        if file_suffix_filter is not None:
            rows &= events.kind.mask(lambda kind: any(ends_with(kind, suffix) for suffix in file_suffix_filter))
        return trace_events(in_file_order(events[rows]))

    def get_current_time_range_for_event_query(self) -> tuple[int, int]:
        """Return the times of the first and the latest file, microseconds since the epoch."""
        return self.get_timestamp_of_first_available_file(), self.get_timestamp_of_latest_available_file()

    def _items(self) -> list[Item]:
        return [item for item in self.source.files if not item.is_system]

    def _read(self) -> EventColumns:
        return self.source.events()


class LocalSystemMetricsReader(SystemMetricsReader):
    """Reader of the system metrics in a folder."""


class S3SystemMetricsReader(SystemMetricsReader):
    """Reader of the system metrics under an s3:// URI."""


class LocalAlgorithmMetricsReader(AlgorithmMetricsReader):
    """Reader of the trace events in a folder."""


class S3AlgorithmMetricsReader(AlgorithmMetricsReader):
    """Reader of the trace events under an s3:// URI."""


def in_file_order(events: EventColumns) -> EventColumns:
    """Sort events by timeline (the hook's first) and keep the order of files within each."""
    kinds = {kind: number for number, kind in enumerate(TIMELINES)}
    rank = np.array([kinds.get(kind, len(kinds)) for kind in events.kind.values], np.int8)
    if len(rank) < 2:  # one timeline alone is in order
        return events
    ranks = rank[events.kind.codes]
    if (ranks[1:] >= ranks[:-1]).all():  # as `ProfileSource.events` returns them
        return events
    # Events of one file are adjacent, so whole runs are moved instead of single rows.
    edges = [0, *(np.flatnonzero(np.diff(ranks)) + 1).tolist(), len(ranks)]
    stretches = sorted(pairwise(edges), key=lambda stretch: int(ranks[stretch[0]]) if len(ranks) else 0)
    ordered: EventColumns = EventColumns.concat([events[start:stop] for start, stop in stretches])
    return ordered


def open_events(source: ProfileSource) -> EventColumns:
    """Update a source and return all its trace events."""
    source.refresh()
    return source.events()


def step_interval(events: EventColumns, start_step: int, end_step: int) -> tuple[float, float]:
    """Return the time from the start of one step to just before the start of another.

    Returns:
        Two times in microseconds since the epoch; (0, 0) if either step was not recorded.
    """
    hook = events.kind.mask(layout.PYTHON_TIMELINE)
    starts = [events.start_us[hook & (events.step == step)] for step in (start_step, end_step)]
    if not all(map(len, starts)):
        return 0, 0
    return float(starts[0].min()), float(starts[1].min()) - 1


def convert_back(time_us: float, unit: TimeUnits) -> float:
    """Convert microseconds to another unit."""
    return time_us * {TimeUnits.SECONDS: 1e-6, TimeUnits.MILLISECONDS: 1e-3, TimeUnits.NANOSECONDS: 1e3}.get(unit, 1)


def ends_with(kind: str, suffix: str) -> bool:
    """Return True if the file names of a timeline end with the suffix."""
    name = "x.trace.json.gz" if kind == layout.DETAILED_TRACE else f"x_{kind}.json"
    return name.endswith(suffix) or suffix.endswith(name[1:])
