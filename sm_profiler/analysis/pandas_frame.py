"""`PandasFrame`: a job's profile as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sm_profiler.analysis.frames import dataloader_frame, framework_frame, steps_first, system_frame
from sm_profiler.analysis.readers import (
    AlgorithmMetricsReader,
    LocalAlgorithmMetricsReader,
    LocalSystemMetricsReader,
    ProfileLocation,
    S3AlgorithmMetricsReader,
    S3SystemMetricsReader,
    SystemMetricsReader,
    event_rows,
    matching_events,
    named_events,
    named_metrics,
    open_profile,
    operators_once,
    similar,
    system_rows,
    tick_times,
    training_events,
)
from sm_profiler.analysis.times import all_microseconds, microseconds
from sm_profiler.errors import SourceError
from sm_profiler.formats.columns import Category, EventColumns, Floats, Ints, SystemColumns
from sm_profiler.formats.layout import DETAILED_TRACE, PYTHON_TIMELINE, hour_folder
from sm_profiler.printable import logger_for
from sm_profiler.source import ProfileSource
from sm_profiler.source.item_table import TIMELINES, Item
from sm_profiler.source.opening import Listed, listed, open_listed, place_of

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

_log = logger_for(__name__)
SCAN_INTERVAL_US = 5_000_000_000
FRAMEWORK, SYSTEM = KINDS = ("framework", "system")
_Task = tuple[str, str | None, list[Listed], str, int]


def spent_at(
    events: EventColumns, moments: Sequence[Any]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Sum durations, each event once per moment inside it; see `PandasFrame.get_framework_metrics_by_timesteps`."""
    times = all_microseconds(moments)
    times = times[times < times.max()] if len(times) else times
    events = events[~events.instants]
    counted = times_inside(events, times)
    by_phase = total(events.phase, events.duration_us, counted)
    by_name = {
        name: spent for name, spent in total(events.name, events.duration_us, counted).items() if "Step" not in name
    }
    steps = {phase: spent for phase, spent in by_phase.items() if "Step" in phase}
    return shares({phase: spent for phase, spent in by_phase.items() if "Step" not in phase}), by_name, steps


def spent_between(
    events: EventColumns, begins: Sequence[Any], ends: Sequence[Any]
) -> tuple[dict[str, float], dict[str, float]]:
    """Sum durations, each event once per interval that it overlaps.

    See `PandasFrame.get_framework_metrics_by_begin_and_end_timesteps`.
    """
    begins_us, ends_us = all_microseconds(begins), all_microseconds(ends)
    last = ends_us.max() if len(ends_us) else 0
    taken = (begins_us < last) & (begins_us <= ends_us)
    events = events[~events.instants & ~events.name.mask(lambda name: "Step" in name)]
    if len(begins_us):
        events = events[(events.end_us >= begins_us.min()) & (events.start_us <= last)]
    counted = intervals_overlapped(events, begins_us[taken], ends_us[taken])
    by_phase = total(events.phase, events.duration_us, counted)
    return shares(by_phase), shares(total(events.name, events.duration_us, counted))


def times_inside(events: EventColumns, times_us: Ints) -> Ints:
    """Count the times inside each event, its ends excluded."""
    ordered = np.sort(times_us)
    return np.searchsorted(ordered, events.end_us, "left") - np.searchsorted(ordered, events.start_us, "right")


def intervals_overlapped(events: EventColumns, begins_us: Ints, ends_us: Ints) -> Ints:
    """Count the intervals that each event overlaps, ends included; no interval may end before it begins."""
    begun = np.searchsorted(np.sort(begins_us), events.end_us, "right")
    return begun - np.searchsorted(np.sort(ends_us), events.start_us, "left")


def total(texts: Category, durations: Floats, counted: Ints) -> dict[str, float]:
    """Sum durations, times their counts, by text; leave out texts whose counts are all zero."""
    size = len(texts.values)
    sums = np.bincount(texts.codes, durations * counted, size)
    present = np.bincount(texts.codes, counted > 0, size)
    return {
        text: int(spent) if spent == int(spent) else float(spent)
        for text, spent, here in zip(texts.values, sums.tolist(), present.tolist(), strict=True)
        if here
    }


def shares(spent: dict[str, float]) -> dict[str, float]:
    greatest = max(spent.values(), default=0)
    return {text: value / greatest for text, value in spent.items()} if greatest else spent


class PandasFrame:
    """A job's profile as pandas DataFrames.

    Columns ending in `_us` count microseconds from `start_time`; other times are text, `2023-11-14T22:13:20:008444` in
    UTC. Unknown numbers are -1.

    Attributes:
        path: the folder or s3:// URI of the profile.
        start_time: origin of the columns ending in `_us`, microseconds since the epoch: the minute of the first system
            metrics; 0 for a job without any.
        system_metrics_reader: returns system metrics as lists of objects.
        framework_metrics_reader: returns trace events as lists of objects.
    """

    def __init__(
        self,
        path: ProfileLocation,
        use_in_memory_cache: bool = False,  # the known signature
        scan_interval: int = SCAN_INTERVAL_US,
    ) -> None:
        """Open a profile.

        Args:
            path: a folder, an s3:// URI, the name of a training job, or an open source.
            use_in_memory_cache: keep the columns that were read in memory until new files appear.
            scan_interval: ignored; profiles of any length are read minute by minute.

        Raises:
            SourceError: the location does not exist or cannot be reached.
        """
        source = open_profile(path)
        self.path = source.uri
        self.interval = scan_interval
        remote = source.uri.startswith("s3://")
        system_reader = S3SystemMetricsReader if remote else LocalSystemMetricsReader
        framework_reader = S3AlgorithmMetricsReader if remote else LocalAlgorithmMetricsReader
        self.system_metrics_reader: SystemMetricsReader = system_reader(source, use_in_memory_cache)
        self.framework_metrics_reader: AlgorithmMetricsReader = framework_reader(source, use_in_memory_cache)
        self.start_time = self.system_metrics_reader.get_timestamp_of_first_available_file()
        self._source = source
        self._latest_system: list[SystemColumns] = []
        self._latest_events: list[EventColumns] = []
        self._asked_system: list[SystemColumns] = []
        self._asked_events: list[EventColumns] = []

    def get_all_system_metrics(self, selected_system_metrics: Sequence[str] = ()) -> pd.DataFrame:
        """Return all system metrics, one row per measurement.

        Args:
            selected_system_metrics: keep only devices with these names (`cpu0`, `gpu1` …); all if empty.

        Returns:
            Columns timestamp, timestamp_us, value (percent, bytes/s or 1/s), system_metric, dimension, nodeID, type.

        Raises:
            SourceError: the profile cannot be reached.
        """
        # No local variable, so that the frame can release columns while it is built; read them before `reusable_columns`.
        return system_frame(
            self._named_metrics(selected_system_metrics),
            self.start_time,
            reuse=self.system_metrics_reader.reusable_columns,
        )

    def get_all_framework_metrics(self, selected_framework_metrics: Sequence[str] = ()) -> pd.DataFrame:
        """Return all trace events that have a duration, one row per event.

        Of the phases that begin with `sm_profiler/`, these are the events of the training: what it saves, logs, compiles,
        calls back or waits for, epochs, and phases timed by the device. Records of the profiler itself (threads, samples,
        its overhead …) are in no frame and no sum; `framework_metrics_reader` and the trace files have them.

        Args:
            selected_framework_metrics: keep only events with these names or phases; all if empty.

        Returns:
            Columns start_time, end_time, start_time_us, end_time_us, tid, pid, framework_metric, step, bytes, process,
            nodeID.

        Raises:
            SourceError: the profile cannot be reached.
        """
        return framework_frame(
            self._named_events(selected_framework_metrics),
            self.start_time,
            reuse=self.framework_metrics_reader.reusable_columns,
        )

    def to_dask(self, metrics: str = "framework") -> Any:
        """Return the profile as a Dask DataFrame, for a job that is larger than this machine's memory.

        It has a partition for each timeline and hour, read by the worker that needs it (`pip install 'sm-profiler[dask]'`).
        An event that begins in a file of one hour and ends in one of the next is not in it.

        Args:
            metrics: "framework" for the rows of `get_all_framework_metrics`, "system" for those of
                `get_all_system_metrics`.

        Raises:
            SourceError: Dask is not installed, or the profile cannot be reached.
            ValueError: there are no such metrics.
        """
        return dask_frame(self._source, metrics, self.start_time)

    def get_all_dataloader_metrics(self, selected_framework_metrics: Sequence[str] = ()) -> pd.DataFrame:
        """Return all trace events with the settings of data loaders, one row per event.

        Args:
            selected_framework_metrics: regular expressions; keep only events whose name or phase matches one anywhere.

        Returns:
            Columns start_time, end_time, start_time_us, end_time_us, duration_us, pid, framework_metric, step,
            worker_id, num_workers, pin_memory ("True", "False" or "NA"), process, node_id.

        Raises:
            SourceError: a pattern is not a valid regular expression, or the profile cannot be reached.
        """
        events = self._events()
        return dataloader_frame(_chosen(events, matching_events(events, selected_framework_metrics)), self.start_time)

    def get_profiler_data_by_time(  # the known signature
        self,
        start_time_us: float,
        end_time_us: float,
        cache_metrics: bool = False,
        selected_framework_metrics: Sequence[str] = (),
        selected_system_metrics: Sequence[str] = (),
        get_framework_metrics: bool = True,
        get_system_metrics: bool = True,
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the system metrics in a time range and the events that overlap it.

        Args:
            start_time_us: start of the range, microseconds since the epoch.
            end_time_us: end of the range, included; microseconds since the epoch.
            cache_metrics: include the rows that earlier calls with this set returned.
            selected_framework_metrics: as in `get_all_framework_metrics`.
            selected_system_metrics: as in `get_all_system_metrics`.
            get_framework_metrics: if False, the second frame is empty.
            get_system_metrics: if False, the first frame is empty.

        Returns:
            The frame of system metrics and the frame of trace events.

        Raises:
            SourceError: the profile cannot be reached.
        """
        system, events = SystemColumns.empty(), EventColumns.empty()
        if get_system_metrics:
            system = self._system()
            _name_unknown("device", selected_system_metrics, system.name)
            rows = system_rows(system, start_time_us, end_time_us)
            system = system[rows & named_metrics(system, selected_system_metrics)]
        if get_framework_metrics:
            events = self._events()
            _name_unknown("event or phase", selected_framework_metrics, events.name, events.phase)
            rows = event_rows(events, start_time_us, end_time_us)
            events = events[rows & named_events(events, selected_framework_metrics)]
        if cache_metrics:
            self._asked_system.append(system)
            self._asked_events.append(events)
            system, events = SystemColumns.concat(self._asked_system), EventColumns.concat(self._asked_events)
        return system_frame(system, self.start_time), framework_frame(events, self.start_time)

    def get_profiler_data_by_step(
        self,
        start_step: int,
        end_step: int,
        cache_metrics: bool = False,  # the known signature
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the events of a range of steps, and the system metrics from their first start to their last end.

        Args:
            start_step: number of the first step.
            end_step: number of the last step, included.
            cache_metrics: ignored.

        Returns:
            The frame of system metrics and the frame of trace events.

        Raises:
            SourceError: the profile cannot be reached.
        """
        events = self._events()
        framework = framework_frame(events[(events.step >= start_step) & (events.step <= end_step)], self.start_time)
        system = self.get_all_system_metrics()
        inside = system["timestamp_us"].between(framework["start_time_us"].min(), framework["end_time_us"].max())
        return system[inside].reset_index(drop=True), framework

    def get_framework_metrics_by_timesteps(
        self, timestep_list: Sequence[Any] = (), selected_framework_metrics: Sequence[str] = ()
    ) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
        """Sum up what ran at given moments: each event counts with its duration once per moment inside it.

        Args:
            timestep_list: moments, as text from a frame; the greatest one only ends the range.
            selected_framework_metrics: as in `get_all_framework_metrics`.

        Returns:
            Three dictionaries: by phase without steps, as a share of the greatest; by name without steps, in
            microseconds; by phase of steps, in microseconds.

        Raises:
            SourceError: a moment is not a time.
        """
        events = self._events()
        return spent_at(events[named_events(events, selected_framework_metrics)], timestep_list)

    def get_framework_metrics_by_begin_and_end_timesteps(
        self,
        begin_timestep_list: Sequence[Any],
        end_timestep_list: Sequence[Any],
        selected_framework_metrics: Sequence[str] = (),
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Sum up what ran in given intervals: each event except steps counts with its duration once per interval.

        Args:
            begin_timestep_list: starts of the intervals, as text from a frame.
            end_timestep_list: ends of the intervals, as many.
            selected_framework_metrics: as in `get_all_framework_metrics`.

        Returns:
            Two dictionaries, by phase and by name, each as a share of the greatest.

        Raises:
            SourceError: a start or end is not a time.
        """
        events = self._events()
        chosen = events[named_events(events, selected_framework_metrics)]
        return spent_between(chosen, begin_timestep_list, end_timestep_list)

    def get_latest_data(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return everything recorded so far; while the job runs, each call adds what is new.

        `timestamp` is the time of the sampling tick, so that rows of CPUs and GPUs can be joined on it (`timestamp_us`
        is the time of measurement). Events are sorted by start, a step before what starts with it, and the first
        training step of each process follows directly after the first row.

        Returns:
            The frame of system metrics and the frame of trace events.

        Raises:
            SourceError: the profile cannot be reached.
        """
        self._source.refresh()
        for batch in self._source.batches():
            self._latest_system.append(batch.system)
            self._latest_events.append(batch.events)
        if not self.start_time:
            self.start_time = self.system_metrics_reader.get_timestamp_of_first_available_file()
        system, events = SystemColumns.concat(self._latest_system), EventColumns.concat(self._latest_events)
        self._latest_system, self._latest_events = [system], [events]
        events = operators_once(events)
        events = events[~events.instants & training_events(events)]
        framework = framework_frame(events[steps_first(events)], self.start_time, ordered=True)
        return system_frame(system, self.start_time, shown_us=tick_times(system)), framework

    def convert_datetime_to_timestamp(self, timestamp: Any) -> int:
        """Convert a time, as text from a frame, to microseconds since the epoch.

        Raises:
            SourceError: `timestamp` is not a time.
        """
        return microseconds(timestamp)

    def to_arrow(self) -> tuple[pa.Table, pa.Table]:
        """Return all system metrics and all trace events as two Arrow tables."""
        import pyarrow as pa  # only this method needs it

        frames = self.get_all_system_metrics(), self.get_all_framework_metrics()
        system, framework = (pa.Table.from_pandas(frame, preserve_index=False) for frame in frames)
        return system, framework

    def to_polars(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return all system metrics and all trace events as two Polars frames.

        Raises:
            ImportError: Polars is not installed.
        """
        import polars as pl  # optional

        system, framework = self.to_arrow()
        return pl.DataFrame(system), pl.DataFrame(framework)

    def _system(self) -> SystemColumns:
        self._source.refresh()
        system: SystemColumns = self.system_metrics_reader.columns()
        return system

    def _named_metrics(self, wanted: Sequence[str]) -> SystemColumns:
        wanted = [wanted] if isinstance(wanted, str) else wanted
        system = self._system()
        chosen: SystemColumns = _chosen(system, named_metrics(system, wanted))
        _name_unknown("device", wanted, system.name)
        return chosen

    def _named_events(self, wanted: Sequence[str]) -> EventColumns:
        wanted = [wanted] if isinstance(wanted, str) else wanted
        events = self._events()
        chosen: EventColumns = _chosen(events, named_events(events, wanted))
        _name_unknown("event or phase", wanted, events.name, events.phase)
        return chosen

    def _events(self) -> EventColumns:
        self._source.refresh()
        return _of_training(self.framework_metrics_reader.columns())


def _name_unknown(kind: str, wanted: Sequence[str], *texts: Category) -> None:
    """Log which of the wanted names no row has, with those that resemble them: an empty frame does not show a typing error."""
    if not wanted:
        return
    present = {name for text in texts for name in text.present()}
    for name in sorted({*map(str, wanted)} - present):
        _log.warning("the profile has no %s named %r%s", kind, name, similar(name, present))


def _chosen(columns: Any, rows: Any) -> Any:
    """Return the selected rows, without a copy if all are selected."""
    return columns if np.all(rows) else columns[rows]


def _of_training(events: EventColumns) -> EventColumns:
    found: EventColumns = _chosen(events, training_events(events))
    return found


def dask_frame(source: ProfileSource, kind: str, start_us: int) -> Any:
    """Return a Dask DataFrame of system metrics or trace events, a partition for each timeline and hour.

    Raises:
        SourceError: Dask is not installed, or its workers cannot open the source.
        ValueError: there is no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is neither {FRAMEWORK!r} nor {SYSTEM!r}")
    try:
        import dask.dataframe as frames  # an extra
    except ImportError:
        raise SourceError("to_dask() needs Dask: pip install 'sm-profiler[dask]'") from None
    dd: Any = frames
    place = place_of(source)
    tasks: list[_Task] = [
        (*place, listed(source, (item.info for item in items)), kind, start_us) for items in _partitions(source, kind)
    ]
    empty = _frame(EventColumns.empty() if kind == FRAMEWORK else SystemColumns.empty(), kind, start_us)
    return dd.from_map(read_partition, tasks, meta=empty) if tasks else dd.from_pandas(empty, npartitions=1)


def _partitions(source: ProfileSource, kind: str) -> Iterator[list[Item]]:
    items = [item for item in source.files if item.is_system == (kind == SYSTEM)]

    def part(item: Item) -> tuple[int, str]:  # a detailed trace is with the hook's timeline: both have its operators
        rank = TIMELINES.index(PYTHON_TIMELINE) if item.kind == DETAILED_TRACE else item.rank
        return rank, hour_folder(item.at_us)

    items.sort(key=part)
    for _, group in groupby(items, key=part):
        yield list(group)


def read_partition(task: _Task) -> Any:
    uri, job, files, kind, start_us = task
    source = open_listed(uri, job, files)
    return _frame(
        _of_training(operators_once(source.events())) if kind == FRAMEWORK else source.system(), kind, start_us
    )


def _frame(columns: Any, kind: str, start_us: int) -> Any:
    return (framework_frame if kind == FRAMEWORK else system_frame)(columns, start_us)
