"""Readers of a job's measurements and trace events, as lists of objects and as columns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sm_profiler.analysis.events import ProfilerSystemEvent, TraceEvent, system_events, trace_events
from sm_profiler.analysis.times import TimeUnits, convert_utc_timestamp_to_microseconds
from sm_profiler.errors import SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.columns import EventColumns, Mask, SystemColumns
from sm_profiler.source import ProfileSource, open_source
from sm_profiler.source.cache import is_writing
from sm_profiler.source.catalog import TIMELINES, Item
from sm_profiler.storage import open_storage

Where = str | os.PathLike[str] | ProfileSource


def open_profile(where: Where) -> ProfileSource:
    """The source behind what a notebook names; of a folder or s3:// URI, also one that holds nothing yet.

    Raises:
        SourceError: it does not exist or cannot be reached.
    """
    if isinstance(where, ProfileSource):
        return where
    try:
        return open_source(where)
    except SourceError:
        text = os.fspath(where)
        if text.startswith("s3://") or Path(text).is_dir():
            return ProfileSource(open_storage(text))  # a job that has only begun
        raise


class MetricsReaderBase:
    """What both readers can do; `where` is a folder, an s3:// URI, a training job's name, or an open source."""

    def __init__(self, where: Where, use_in_memory_cache: bool = False) -> None:  # noqa: FBT001, FBT002 - the known signature
        self.source = open_profile(where)
        self._keep = use_in_memory_cache
        self._kept: tuple[tuple[Item, ...], Any] | None = None

    def refresh_event_file_list(self) -> None:
        """Look for new files.

        Raises:
            SourceError: the folder or bucket cannot be listed.
        """
        self.source.refresh()

    def get_timestamp_of_first_available_file(self) -> int:
        """Of the first of its files, microseconds since the epoch; 0 while there is none."""
        return min((item.at_us for item in self._items()), default=0)

    def get_timestamp_of_latest_available_file(self) -> int:
        """Of the last of its files, microseconds since the epoch; 0 while there is none."""
        return max((item.at_us for item in self._items()), default=0)

    def get_events_by_step(
        self,
        start_step: int,
        end_step: int,
        event_type: str | None = None,
        file_suffix_filter: Sequence[str] | None = None,
    ) -> list[Any]:
        """What happened from the start of one step to the start of another; nothing if either was not recorded."""
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
        """What happened in a time range."""
        raise NotImplementedError

    def _items(self) -> list[Item]:
        raise NotImplementedError

    def _read(self) -> Any:
        raise NotImplementedError

    @property
    def hands_over(self) -> bool:
        """Whether columns are whoever's who asked for them: nobody keeps them, or is writing them to disk just now."""
        return not self._keep and not is_writing()

    def columns(self) -> Any:
        """All there is, as columns; kept from one call to the next if the reader was made so."""
        if not self._keep:
            return self._read()
        items = tuple(self._items())
        if self._kept is None or self._kept[0] != items:
            self._kept = items, self._read()
        return self._kept[1]


class SystemMetricsReader(MetricsReaderBase):
    """Reads system metrics."""

    def get_events(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
        event_type: str | None = None,
        file_suffix_filter: Sequence[str] | None = None,
    ) -> list[ProfilerSystemEvent]:
        """The measurements of a time range, both ends included.

        Args:
            start_time: since the epoch, in `unit`.
            end_time: the same.
            unit: of the two.
            event_type: only those of this type (cpu, gpu, memory, i/o, network).
            file_suffix_filter: only those of files whose name ends so.
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
    """Reads trace events."""

    def get_events(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
        event_type: str | None = None,  # noqa: ARG002 - trace events have no types
        file_suffix_filter: Sequence[str] | None = None,
    ) -> list[TraceEvent]:
        """The spans that lie in a time range or reach into it.

        Args:
            start_time: since the epoch, in `unit`.
            end_time: the same.
            unit: of the two.
            event_type: of no meaning here.
            file_suffix_filter: only those of files whose name ends so.
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
        """The times of the first and the last file, microseconds since the epoch."""
        return self.get_timestamp_of_first_available_file(), self.get_timestamp_of_latest_available_file()

    def _items(self) -> list[Item]:
        return [item for item in self.source.files if not item.is_system]

    def _read(self) -> EventColumns:
        return self.source.events()


class LocalSystemMetricsReader(SystemMetricsReader):
    """Reads the system metrics of a folder."""


class S3SystemMetricsReader(SystemMetricsReader):
    """Reads the system metrics under an s3:// URI."""


class LocalAlgorithmMetricsReader(AlgorithmMetricsReader):
    """Reads the trace events of a folder."""


class S3AlgorithmMetricsReader(AlgorithmMetricsReader):
    """Reads the trace events under an s3:// URI."""


def in_file_order(events: EventColumns) -> EventColumns:
    """The events by timeline (the hook's first), each timeline's in the order of its files."""
    kinds = {kind: number for number, kind in enumerate(TIMELINES)}
    rank = np.array([kinds.get(kind, len(kinds)) for kind in events.kind.values], np.int8)
    if len(rank) < 2:  # noqa: PLR2004 - one timeline alone is in order
        return events
    ranks = rank[events.kind.codes]
    if (ranks[1:] >= ranks[:-1]).all():  # as `events()` of a source delivers them
        return events
    # A file's events stand together, so whole stretches move and not single rows.
    edges = [0, *(np.flatnonzero(np.diff(ranks)) + 1).tolist(), len(ranks)]
    stretches = sorted(pairwise(edges), key=lambda stretch: int(ranks[stretch[0]]) if len(ranks) else 0)
    ordered: EventColumns = EventColumns.concat([events[start:stop] for start, stop in stretches])
    return ordered


def system_rows(system: SystemColumns, start_us: float, end_us: float) -> Mask:
    """True for each measurement of a time range, both ends included; microseconds since the epoch."""
    return (system.timestamp * 1e6 >= start_us) & (system.timestamp * 1e6 <= end_us)


def event_rows(events: EventColumns, start_us: float, end_us: float) -> Mask:
    """True for each event that lies in a time range or reaches into it; microseconds since the epoch."""
    return (events.end_us >= start_us) & (events.start_us <= end_us)


def open_events(source: ProfileSource) -> EventColumns:
    """All trace events of a source, looked for anew."""
    source.refresh()
    return source.events()


def step_interval(events: EventColumns, start_step: int, end_step: int) -> tuple[float, float]:
    """From the start of one step to just before the start of another, microseconds; (0, 0) if either is missing."""
    hook = events.kind.mask(layout.PYTHON_TIMELINE)
    starts = [events.start_us[hook & (events.step == step)] for step in (start_step, end_step)]
    if not all(map(len, starts)):
        return 0, 0
    return float(starts[0].min()), float(starts[1].min()) - 1


def convert_back(time_us: float, unit: TimeUnits) -> float:
    """Microseconds in another unit."""
    return time_us * {TimeUnits.SECONDS: 1e-6, TimeUnits.MILLISECONDS: 1e-3, TimeUnits.NANOSECONDS: 1e3}.get(unit, 1)


def ends_with(kind: str, suffix: str) -> bool:
    """Whether the names of a timeline's files end so."""
    name = "x.trace.json.gz" if kind == layout.DETAILED_TRACE else f"x_{kind}.json"
    return name.endswith(suffix) or suffix.endswith(name[1:])
