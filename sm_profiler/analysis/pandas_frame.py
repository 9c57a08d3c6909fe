"""A job's profile as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sm_profiler.analysis.correlation import spent_at, spent_between
from sm_profiler.analysis.frames import dataloader_frame, framework_frame, system_frame
from sm_profiler.analysis.latest import steps_first, tick_times
from sm_profiler.analysis.readers import (
    AlgorithmMetricsReader,
    LocalAlgorithmMetricsReader,
    LocalSystemMetricsReader,
    S3AlgorithmMetricsReader,
    S3SystemMetricsReader,
    SystemMetricsReader,
    Where,
    event_rows,
    open_profile,
    system_rows,
)
from sm_profiler.analysis.selection import matching_events, named_events, named_metrics
from sm_profiler.analysis.times import microseconds
from sm_profiler.formats.columns import EventColumns, SystemColumns

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

SCAN_INTERVAL_US = 5_000_000_000


class PandasFrame:
    """The frames of a job.

    Attributes:
        path: where the profile is.
        start_time: what the columns ending in `_us` count from, microseconds since the epoch: the minute of the first
            system metrics, 0 for a job without any.
        system_metrics_reader: reads the system metrics as lists of objects.
        framework_metrics_reader: reads the trace events so.
    """

    def __init__(
        self,
        path: Where,
        use_in_memory_cache: bool = False,  # noqa: FBT001, FBT002 - the known signature
        scan_interval: int = SCAN_INTERVAL_US,
    ) -> None:
        """Open a profile.

        Args:
            path: a folder, an s3:// URI, the name of a training job, or an open source.
            use_in_memory_cache: keep what was read for the next question.
            scan_interval: of no meaning any more; whatever the length of the job, it is read minute by minute.

        Raises:
            SourceError: it does not exist or cannot be reached.
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
        """All system metrics.

        Args:
            selected_system_metrics: only those of devices of these names (`cpu0`, `gpu1` …); all where empty.

        Returns:
            Columns timestamp, timestamp_us, value, system_metric, dimension, nodeID, type.
        """
        # Not kept here: the frame lets go of the columns while it is built.  Whose they are is known once they are read.
        return system_frame(
            self._named_metrics(selected_system_metrics),
            self.start_time,
            spent=self.system_metrics_reader.hands_over,
        )

    def get_all_framework_metrics(self, selected_framework_metrics: Sequence[str] = ()) -> pd.DataFrame:
        """All trace events.

        Args:
            selected_framework_metrics: only those of these names or phases; all where empty.

        Returns:
            Columns start_time, end_time, start_time_us, end_time_us, tid, pid, framework_metric, step, bytes, process,
            nodeID.
        """
        return framework_frame(
            self._named_events(selected_framework_metrics),
            self.start_time,
            spent=self.framework_metrics_reader.hands_over,
        )

    def get_all_dataloader_metrics(self, selected_framework_metrics: Sequence[str] = ()) -> pd.DataFrame:
        """All trace events, with what is known of the loaders' workers.

        Args:
            selected_framework_metrics: only those in whose name or phase one of these regular expressions is found.

        Returns:
            Columns start_time, end_time, start_time_us, end_time_us, duration_us, pid, framework_metric, step,
            worker_id, num_workers, pin_memory, process, node_id.
        """
        events = self._events()
        return dataloader_frame(_chosen(events, matching_events(events, selected_framework_metrics)), self.start_time)

    def get_profiler_data_by_time(  # noqa: PLR0913, PLR0917 - the known signature
        self,
        start_time_us: float,
        end_time_us: float,
        cache_metrics: bool = False,  # noqa: FBT001, FBT002
        selected_framework_metrics: Sequence[str] = (),
        selected_system_metrics: Sequence[str] = (),
        get_framework_metrics: bool = True,  # noqa: FBT001, FBT002
        get_system_metrics: bool = True,  # noqa: FBT001, FBT002
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """What was measured in a time range, and the events that lie in it or reach into it.

        Args:
            start_time_us: microseconds since the epoch.
            end_time_us: the same; both ends belong to the range.
            cache_metrics: return what earlier calls with this set have found, too.
            selected_framework_metrics: as in `get_all_framework_metrics`.
            selected_system_metrics: as in `get_all_system_metrics`.
            get_framework_metrics: if not set, the second frame is empty.
            get_system_metrics: if not set, the first frame is empty.

        Returns:
            The frame of the system metrics and that of the trace events.
        """
        system, events = SystemColumns.empty(), EventColumns.empty()
        if get_system_metrics:
            system = self._system()
            rows = system_rows(system, start_time_us, end_time_us)
            system = system[rows & named_metrics(system, selected_system_metrics)]
        if get_framework_metrics:
            events = self._events()
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
        cache_metrics: bool = False,  # noqa: ARG002, FBT001, FBT002 - the known signature; there is nothing to gain
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The events of a range of steps, both included, and what was measured from the first's start to the last's end.

        Returns:
            The frame of the system metrics and that of the trace events.
        """
        events = self._events()
        framework = framework_frame(events[(events.step >= start_step) & (events.step <= end_step)], self.start_time)
        system = self.get_all_system_metrics()
        inside = system["timestamp_us"].between(framework["start_time_us"].min(), framework["end_time_us"].max())
        return system[inside].reset_index(drop=True), framework

    def get_framework_metrics_by_timesteps(
        self, timestep_list: Sequence[Any] = (), selected_framework_metrics: Sequence[str] = ()
    ) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
        """What ran at certain moments: each event counts with its duration for each moment that lies inside it.

        Args:
            timestep_list: times of a frame, as text; the last closes the range and is no moment itself.
            selected_framework_metrics: as in `get_all_framework_metrics`.

        Returns:
            By phase (steps excepted), as a share of the greatest; by name, in microseconds; by step's phase, in
            microseconds.
        """
        events = self._events()
        return spent_at(events[named_events(events, selected_framework_metrics)], timestep_list)

    def get_framework_metrics_by_begin_and_end_timesteps(
        self,
        begin_timestep_list: Sequence[Any],
        end_timestep_list: Sequence[Any],
        selected_framework_metrics: Sequence[str] = (),
    ) -> tuple[dict[str, float], dict[str, float]]:
        """What ran in certain intervals: each event (steps excepted) counts with its duration for each that it touches.

        Args:
            begin_timestep_list: where the intervals begin: times of a frame, as text.
            end_timestep_list: where they end.
            selected_framework_metrics: as in `get_all_framework_metrics`.

        Returns:
            By phase and by name, each as a share of the greatest.
        """
        events = self._events()
        chosen = events[named_events(events, selected_framework_metrics)]
        return spent_between(chosen, begin_timestep_list, end_timestep_list)

    def get_latest_data(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Everything there is so far; call it again for more while the job runs.

        `timestamp` is that of the sampling tick, so that rows of CPUs and GPUs can be joined on it (`timestamp_us` is as
        it was measured).  The events are in order of their start, a step before what starts with it, the first training
        step of each process right behind the first row.

        Returns:
            The frame of the system metrics and that of the trace events.
        """
        self._source.refresh()
        for batch in self._source.batches():
            self._latest_system.append(batch.system)
            self._latest_events.append(batch.events)
        if not self.start_time:
            self.start_time = self.system_metrics_reader.get_timestamp_of_first_available_file()
        system, events = SystemColumns.concat(self._latest_system), EventColumns.concat(self._latest_events)
        self._latest_system, self._latest_events = [system], [events]
        events = events[~events.instants]
        framework = framework_frame(events[steps_first(events)], self.start_time, ordered=True)
        return system_frame(system, self.start_time, shown_us=tick_times(system)), framework

    def convert_datetime_to_timestamp(self, timestamp: Any) -> int:
        """A time of a frame, as text, in microseconds since the epoch.

        Raises:
            SourceError: it is no time.
        """
        return microseconds(timestamp)

    def to_arrow(self) -> tuple[pa.Table, pa.Table]:
        """All system metrics and all trace events as Arrow tables."""
        import pyarrow as pa  # noqa: PLC0415 - only who asks for it needs it

        frames = self.get_all_system_metrics(), self.get_all_framework_metrics()
        system, framework = (pa.Table.from_pandas(frame, preserve_index=False) for frame in frames)
        return system, framework

    def to_polars(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """All system metrics and all trace events as Polars frames; Polars must be installed."""
        import polars as pl  # noqa: PLC0415 - only who asks for it needs it

        system, framework = self.to_arrow()
        return pl.DataFrame(system), pl.DataFrame(framework)

    def _system(self) -> SystemColumns:
        self._source.refresh()
        system: SystemColumns = self.system_metrics_reader.columns()
        return system

    def _named_metrics(self, wanted: Sequence[str]) -> SystemColumns:
        system = self._system()
        chosen: SystemColumns = _chosen(system, named_metrics(system, wanted))
        return chosen

    def _named_events(self, wanted: Sequence[str]) -> EventColumns:
        events = self._events()
        chosen: EventColumns = _chosen(events, named_events(events, wanted))
        return chosen

    def _events(self) -> EventColumns:
        self._source.refresh()
        events: EventColumns = self.framework_metrics_reader.columns()
        return events


def _chosen(columns: Any, rows: Any) -> Any:
    """The rows of the columns; the columns themselves where it is all of them."""
    return columns if np.all(rows) else columns[rows]
