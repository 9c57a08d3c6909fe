"""Readers of a job's system metrics and trace events, as lists of objects and as columns, and selection of rows."""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sm_profiler.analysis.times import (
    TimeUnits,
    convert_utc_timestamp_to_microseconds,
    us_since_epoch_to_human_readable_time,
)
from sm_profiler.config.launched import Launched
from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.columns import EventColumns, Floats, Ints, Mask, SystemColumns
from sm_profiler.formats.event_names import CPU_OPERATORS, GPU_OPERATORS, OF_TRAINING, OWN
from sm_profiler.formats.event_objects import ProfilerSystemEvent, TraceEvent, system_events, trace_events
from sm_profiler.printable import logger_for, printable
from sm_profiler.source import ProfileSource, open_source
from sm_profiler.source.cache import is_writing
from sm_profiler.source.item_table import TIMELINES, Item
from sm_profiler.source.job import describe, own_log_lines, profiler_output, stored_profile
from sm_profiler.source.opening import NoProfilerDataError
from sm_profiler.storage import open_storage
from sm_profiler.storage.s3 import create_api_client

# Intervals that a profile can set; a job with any other is measured, to a millisecond.
INTERVALS_US = np.array([100_000, 200_000, 500_000, 1_000_000, 5_000_000, 60_000_000])
_TOLERANCE = 0.2

POLL_S = 10.0
_log = logger_for(__name__)
# a folder, an s3:// URI, the name of a training job, or an open source
ProfileLocation = str | os.PathLike[str] | ProfileSource


def tick_times(system: SystemColumns) -> Ints:
    """Return the time of the sampling tick of each measurement, whole microseconds since the epoch.

    The monitor reads the metrics of a tick (CPUs, GPUs, memory …) one after the other. Measurements of a node within
    half an interval of the first one belong to the same tick. Its time is the first measurement's, rounded to a
    multiple of the interval, so that the ticks of several nodes coincide.
    """
    times = np.zeros(len(system), np.int64)
    interval = sampling_interval_us(system)
    for node in np.unique(system.node.codes):
        rows = np.flatnonzero(system.node.codes == node)
        at_us = system.timestamp[rows] * layout.SECOND_US
        distinct, place = np.unique(at_us, return_inverse=True)
        ticks = np.rint(_first_of_tick(distinct, interval) / interval).astype(np.int64) * interval
        times[rows] = ticks[place]
    return times


def sampling_interval_us(system: SystemColumns) -> int:
    """Return the sampling interval of a job: the median gap between two measurements of a device, in microseconds.

    A gap within 20 percent of an interval that a profile can set counts as that interval. With fewer than two samples
    per device, the result is the smallest such interval.
    """
    gaps: list[NDArray[np.float64]] = []
    device = _device_codes(system)
    order = np.lexsort((system.timestamp, device))
    if len(order):
        gap = np.diff(system.timestamp[order])
        gaps.append(gap[(device[order][1:] == device[order][:-1]) & (gap > 0)] * layout.SECOND_US)
    found = np.concatenate(gaps) if gaps else np.empty(0)
    if not len(found):
        return int(INTERVALS_US[0])
    median = float(np.median(found))
    nearest = int(INTERVALS_US[np.argmin(abs(INTERVALS_US - median))])
    if abs(median - nearest) <= _TOLERANCE * nearest:
        return nearest
    return max(1000, round(median / 1000) * 1000)


def _device_codes(system: SystemColumns) -> Ints:
    """Number each combination of node, device and dimension."""
    columns = (system.node, system.type, system.name, system.dimension)
    code = np.zeros(len(system), np.int64)
    for column in columns:
        code = code * max(1, len(column.values)) + column.codes
    return code


def _first_of_tick(distinct: Floats, interval: int) -> Floats:
    """Return, for sorted times, the first time of the tick that each belongs to."""
    if not len(distinct):
        return distinct
    starts = np.concatenate([[True], np.diff(distinct) > interval / 2])
    # A tick spans at most half an interval, so a measurement that a slow device delays further starts its own.
    number = np.cumsum(starts) - 1
    first = distinct[starts][number]
    late = distinct - first > interval / 2
    return np.where(late, distinct, first)


def system_rows(system: SystemColumns, start_us: float, end_us: float) -> Mask:
    """Select the measurements in a time range, both ends included; microseconds since the epoch."""
    return (system.timestamp * 1e6 >= start_us) & (system.timestamp * 1e6 <= end_us)


def event_rows(events: EventColumns, start_us: float, end_us: float) -> Mask:
    """Select the events that overlap a time range, both ends included; microseconds since the epoch."""
    return (events.end_us >= start_us) & (events.start_us <= end_us)


def of_training(phase: str) -> bool:
    """Return whether events of a phase are events of the training, and no records of the profiler (threads, samples …)."""
    return not phase.startswith(OWN) or phase in OF_TRAINING


def training_events(events: EventColumns) -> Mask:
    return events.phase.mask(of_training)


def operators_once(events: EventColumns) -> EventColumns:
    """Leave out the detailed traces of processes whose operators are in the hook's timeline, which has their steps.

    The hook keeps such a trace for other tools, and writes its operators and kernels as events as well.
    """
    traces = events.kind.mask(layout.DETAILED_TRACE)
    if not traces.any():
        return events
    operators = ~traces & events.phase.mask(lambda phase: phase.startswith((CPU_OPERATORS, GPU_OPERATORS)))
    again = traces & np.isin(events.node.codes, np.unique(events.node.codes[operators]))
    kept: EventColumns = events[~again] if again.any() else events
    return kept


def named_metrics(system: SystemColumns, names: Collection[str]) -> Mask:
    """Select the measurements of the named devices; all of them if `names` is empty."""
    return system.name.mask(lambda name: name in names) if names else np.ones(len(system), np.bool_)


def named_events(events: EventColumns, names: Collection[str]) -> Mask:
    """Select the events with one of the names, or in one of the phases; all of them if `names` is empty."""
    if not names:
        return np.ones(len(events), np.bool_)
    return events.name.mask(lambda name: name in names) | events.phase.mask(lambda phase: phase in names)


def similar(name: str, present: Collection[str]) -> str:
    """Return a hint at the names that resemble one that is not present; "" if there are none."""
    near = difflib.get_close_matches(name, sorted(present), n=3)
    return f"; did you mean {', '.join(near)}?" if near else ""


def matching_events(events: EventColumns, patterns: Sequence[str]) -> Mask:
    """Select the events whose name or phase matches a regular expression anywhere; all of them without patterns.

    Raises:
        ConfigError: a pattern is not a valid regular expression.
    """
    if not patterns:
        return np.ones(len(events), np.bool_)
    found = any_of(patterns)
    return events.name.mask(found) | events.phase.mask(found)


def any_of(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return whether one of the regular expressions matches a text anywhere.

    Raises:
        ConfigError: a pattern is not a valid regular expression.
    """
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise ConfigError(f"{error.pattern!r} is not a valid regular expression: {error.msg}") from error
    return lambda text: any(pattern.search(text) for pattern in compiled)


class TrainingJob:
    """A SageMaker training job and its profile.

    Attributes:
        name: name of the job.
        profiler_config: the ProfilerConfig in the service's description; None for a job launched with the agent.
        profiler_s3_output_path: s3:// URI of the profile.
        system_metrics_reader: reader of the system metrics; None until they have been waited for, or requested.
        framework_metrics_reader: reader of the trace events; None until they have been waited for, or requested.
    """

    def __init__(self, training_job_name: str, region: str | None = None) -> None:
        """Describe a job.

        Args:
            training_job_name: name of the job.
            region: AWS region; default: boto3's.

        Raises:
            SourceError: the job does not exist, cannot be described, or is not profiled.
        """
        self.name = training_job_name
        try:
            self.sm_client = create_api_client("sagemaker", region=region)
        except SourceError as error:
            raise SourceError(f"training job {training_job_name} cannot be described: {error}") from error
        self.ds = describe(training_job_name, region=region, client=self.sm_client)
        self.profiler_config: dict[str, Any] | None = self.ds.get("ProfilerConfig")
        self.profiler_s3_output_path = profiler_output(training_job_name, client=self.sm_client)
        self.system_metrics_reader: S3SystemMetricsReader | None = None
        self.framework_metrics_reader: S3AlgorithmMetricsReader | None = None
        print(f"s3 path:{printable(self.profiler_s3_output_path)}")

    def __repr__(self) -> str:
        status = self.ds.get("TrainingJobStatus", "unknown")
        return printable(f"<TrainingJob {self.name}: {status}, profile in {self.profiler_s3_output_path}>")

    def get_systems_metrics_reader(self) -> S3SystemMetricsReader | None:
        """Return the reader of system metrics; None until there are any.

        Raises:
            SourceError: the bucket cannot be listed.
        """
        if self.system_metrics_reader is None:
            self.system_metrics_reader = _if_it_has_data(S3SystemMetricsReader(self.profiler_s3_output_path))
        return self.system_metrics_reader

    def get_framework_metrics_reader(self) -> S3AlgorithmMetricsReader | None:
        """Return the reader of trace events; None until there are any.

        Raises:
            SourceError: the bucket cannot be listed.
        """
        if self.framework_metrics_reader is None:
            self.framework_metrics_reader = _if_it_has_data(S3AlgorithmMetricsReader(self.profiler_s3_output_path))
        return self.framework_metrics_reader

    def get_sm_client(self) -> Any:
        """Return the boto3 client of SageMaker."""
        return self.sm_client

    def get_config_and_profiler_s3_output_path(self) -> tuple[dict[str, Any] | None, str]:
        """Return the ProfilerConfig and the s3:// URI of the profile."""
        return self.profiler_config, self.profiler_s3_output_path

    def describe_training_job(self) -> dict[str, Any]:
        """Return the current response of DescribeTrainingJob.

        Raises:
            SourceError: the job cannot be described.
        """
        return describe(self.name, client=self.sm_client)

    def report(self, **options: Any) -> Any:
        """Judge the job by its data so far, and return its report, which a notebook shows inline.

        Args:
            options: `height` in pixels, and those of `sm_profiler.report.build_report`.

        Raises:
            SourceError: it has no data yet, or the data cannot be read.
        """
        source = open_source(self.profiler_s3_output_path)
        source.description = self.describe_training_job()
        # by name: the report is made from this package's data, and must not be needed for it
        return import_module("sm_profiler.report").show_report(source, **options)

    def wait_for_sys_profiling_data_to_be_available(self) -> None:
        """Wait until the first system metrics file exists.

        Raises:
            SourceError: the job has ended without writing one, or cannot be described.
        """
        self.system_metrics_reader = S3SystemMetricsReader(self.profiler_s3_output_path)
        self._wait(self.system_metrics_reader, "Profiler data from system")

    def wait_for_framework_profiling_data_to_be_available(self) -> None:
        """Wait until the first trace file exists.

        Raises:
            SourceError: the job has ended without writing one, or cannot be described.
        """
        self.framework_metrics_reader = S3AlgorithmMetricsReader(self.profiler_s3_output_path)
        self._wait(self.framework_metrics_reader, "Profiler data from framework")
        latest = self.framework_metrics_reader.get_timestamp_of_latest_available_file()
        print(
            f"Found recorded framework annotations. Latest available timestamp microseconds_since_epoch is:{latest}, "
            f"human_readable_timestamp in utc: {us_since_epoch_to_human_readable_time(latest)}"
        )

    def _wait(self, reader: MetricsReaderBase, what: str) -> None:
        shown: tuple[str, str] | None = None
        while not reader.get_timestamp_of_latest_available_file():
            job = self.describe_training_job()
            status = job.get("TrainingJobStatus", ""), job.get("SecondaryStatus", "")
            reader.refresh_event_file_list()
            if reader.get_timestamp_of_latest_available_file():
                break
            if status[0] in {"Completed", "Failed", "Stopped"}:
                ended = f"training job {self.name} ended with status {status[0]}; it has no {what.lower()}"
                raise SourceError(f"{ended}: {self._why_none(job)}")
            if status != shown:
                print(f"{what} not available yet; TrainingJobStatus:{status[0]} SecondaryStatus:{status[1]}")
                shown = status
            time.sleep(POLL_S)
        print(f"{what} is available")

    def _why_none(self, job: dict[str, Any]) -> str:
        """Return why an ended job has no data of a kind, and what to do."""
        if stored_profile([self.profiler_s3_output_path]) is not None:  # of the other kind
            why, advice = Launched.of(job).why_no_steps()
            return f"{why} {advice}"
        log = own_log_lines(self.name, region=self.sm_client.meta.region_name)
        why, advice = Launched.of(job).why_no_profile(log)
        return f"{why}. To do: {advice}." if advice else f"{why}."


def open_profile(location: ProfileLocation | None) -> ProfileSource:
    """Open a profile.

    A folder or s3:// URI may still be empty, so that a reader can be made when the job starts.

    Args:
        location: a folder, an s3:// URI, the name of a training job, or an open source.

    Raises:
        SourceError: the location does not exist or cannot be reached.
    """
    if isinstance(location, ProfileSource):
        return location
    if location is None:
        raise SourceError(
            "None is no profile: the readers of a TrainingJob are None until the job has data, which "
            "wait_for_sys_profiling_data_to_be_available() and wait_for_framework_profiling_data_to_be_available() wait for"
        )
    try:
        return open_source(location)
    except NoProfilerDataError:
        text = os.fspath(location)
        if text.startswith("s3://") or Path(text).is_dir():
            _log.warning("%s has no profile yet: what is read from it is empty until there is one", text)
            return ProfileSource(open_storage(text))  # a job that has just started
        raise
    except SourceError as error:
        raise error.with_traceback(None) from None  # the line is enough: a notebook shows every frame of both libraries


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
        return operators_once(self.source.events())


R = TypeVar("R", bound=MetricsReaderBase)


def _if_it_has_data(reader: R) -> R | None:
    return reader if reader.get_timestamp_of_latest_available_file() else None


class LocalSystemMetricsReader(SystemMetricsReader):
    """Reader of the system metrics in a folder."""

    def __init__(
        self, trace_root_folder: ProfileLocation, use_in_memory_cache: bool = False
    ) -> None:  # the known names
        super().__init__(trace_root_folder, use_in_memory_cache)


class S3SystemMetricsReader(SystemMetricsReader):
    """Reader of the system metrics under an s3:// URI."""

    def __init__(self, s3_trial_path: ProfileLocation, use_in_memory_cache: bool = False) -> None:  # the known names
        super().__init__(s3_trial_path, use_in_memory_cache)


class LocalAlgorithmMetricsReader(AlgorithmMetricsReader):
    """Reader of the trace events in a folder."""

    def __init__(
        self, trace_root_folder: ProfileLocation, use_in_memory_cache: bool = False
    ) -> None:  # the known names
        super().__init__(trace_root_folder, use_in_memory_cache)


class S3AlgorithmMetricsReader(AlgorithmMetricsReader):
    """Reader of the trace events under an s3:// URI."""

    def __init__(self, s3_trial_path: ProfileLocation, use_in_memory_cache: bool = False) -> None:  # the known names
        super().__init__(s3_trial_path, use_in_memory_cache)


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
    source.refresh()
    return operators_once(source.events())


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
