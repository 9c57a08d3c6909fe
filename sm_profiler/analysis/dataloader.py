"""Where PyTorch's data loading spends its time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sm_profiler.analysis.pandas_frame import PandasFrame
from sm_profiler.analysis.readers import Where
from sm_profiler.analysis.selection import matching_events
from sm_profiler.analysis.times import microseconds
from sm_profiler.formats import event_names

if TYPE_CHECKING:
    from sm_profiler.analysis.timeline_charts import TimelineCharts

_TEXT = "%Y-%m-%dT%H:%M:%S:%f"
_ITERATORS = ("_MultiProcessingDataLoaderIter.__init__", "_SingleProcessDataLoaderIter.__init__")
_ANY = (".*",)


class PT_dataloader_analysis:  # noqa: N801 - the known name
    """Prints what the events of data loading tell, and returns the outliers (twice the median and more) as frames.

    Attributes:
        dataIter_metric: the GetNext calls.
        initialize_metric: the initializations of iterators.
        dataWorker_metric: the worker processes.
    """

    def __init__(self, pandas_frame: PandasFrame | Where) -> None:
        """Read the events of data loading.

        Args:
            pandas_frame: a PandasFrame, or anything that one can be made of.
        """
        self.pd_data_frame = pandas_frame if isinstance(pandas_frame, PandasFrame) else PandasFrame(pandas_frame)
        ask = self.pd_data_frame.get_all_dataloader_metrics
        self.dataIter_metric = ask([".*DataLoaderIter::GetNext"])
        self.initialize_metric = ask([event_names.DATALOADER_INITIALIZE])
        self.dataWorker_metric = ask([event_names.DATALOADER_WORKER])

    def analyze_dataloaderIter_initialization(self) -> None:  # noqa: N802 - the known name
        """Print which iterators were made, with how many workers, how often, and how long it took."""
        for kind in _ITERATORS:
            self._inspect(kind)

    def analyze_dataloaderWorkers(self) -> pd.DataFrame | None:  # noqa: N802 - the known name
        """Print how many worker processes there were and how long they lived; returns those that lived long."""
        if self.dataWorker_metric.empty:
            _say("Trace events corresponding to DataLoaderWorker processes are not present")
            return None
        _say(f"Total number of workers spun off during the training {len(self.dataWorker_metric)}")
        _say_durations(self.dataWorker_metric, "worker processes")
        return _outliers(
            self.dataWorker_metric,
            "duration_us",
            ["start_time", "end_time", "duration_us", "worker_id"],
            "Start time and End time for iterator initialization that are outliers (duration > 2 * median)",
            "No outliers found in dataloader workers",
        )

    def analyze_dataloader_getnext(self) -> pd.DataFrame | None:
        """Print how many GetNext calls there were and how long they took; returns those that took long."""
        if self.dataIter_metric.empty:
            _say("Trace events corresponding to DataLoaderIter::GetNext calls are not present")
            return None
        _say(f"Total number of GetNext calls made during the training {len(self.dataIter_metric)}")
        _say_durations(self.dataIter_metric, "worker processes")
        return _outliers(
            self.dataIter_metric,
            "duration_us",
            ["start_time", "end_time", "duration_us", "worker_id"],
            "Start time and End time for GetNext durations that are outliers (duration > 2 * median)",
            "No outliers found in dataloader getnext invocations.",
        )

    def analyze_batchtime(
        self,
        start_timestamp: Any = None,
        end_timestamp: Any = None,
        select_events: Sequence[str] = _ANY,
        select_dimensions: Sequence[str] = _ANY,
    ) -> pd.DataFrame | None:
        """Print the time from each batch to the next, and for the slow ones where it went.

        Args:
            start_timestamp: where the time window begins: a time of a frame as text, or microseconds since the epoch;
                where the job does if None.
            end_timestamp: where it ends; where the job does if None.
            select_events: regular expressions for names and phases of events to show.
            select_dimensions: the same for dimensions and names of system metrics.

        Returns:
            The batches that took twice the median and more: previous_batch_start, start_time, BatchTime_in_seconds,
            worker_id; None if there are none.
        """
        if self.dataIter_metric.empty:
            _say("Trace events corresponding to DataLoaderIter::GetNext calls are not present")
            return None
        self.dataIter_metric = _batch_times(self.dataIter_metric)
        calls = self.dataIter_metric
        if start_timestamp is not None or end_timestamp is not None:
            zero = self.pd_data_frame.start_time
            begin = -np.inf if start_timestamp is None else microseconds(start_timestamp) - zero
            end = np.inf if end_timestamp is None else microseconds(end_timestamp) - zero
            calls = calls[(calls["start_time_us"] >= begin) & (calls["end_time_us"] <= end)]
        _say(f"Median time spent on each batch of data = {calls['BatchTime_in_seconds'].median()} seconds")
        slow = _outliers(
            calls,
            "BatchTime_in_seconds",
            ["previous_batch_start", "start_time", "BatchTime_in_seconds", "worker_id"],
            "Start time and End time for processing the databatches that are outliers (duration > 2 * median)",
            "No outliers found in time taken to process the databatches.",
        )
        if slow is not None and (start_timestamp is not None or end_timestamp is not None):
            self._show_inside(slow, select_events, select_dimensions)
        return slow

    def plot_the_window(
        self,
        start_timestamp: Any,
        end_timestamp: Any,
        select_events: Sequence[str] = _ANY,
        select_dimensions: Sequence[str] = _ANY,
    ) -> TimelineCharts:
        """Charts of what ran and what was measured in a time window.

        Args:
            start_timestamp: where it begins: a time of a frame as text, or microseconds since the epoch.
            end_timestamp: where it ends.
            select_events: regular expressions for names and phases of events to show.
            select_dimensions: the same for dimensions and names of system metrics.
        """
        from sm_profiler.analysis.timeline_charts import TimelineCharts  # noqa: PLC0415 - Bokeh takes a while to load

        return TimelineCharts(
            self.pd_data_frame.system_metrics_reader,
            self.pd_data_frame.framework_metrics_reader,
            starttime=microseconds(start_timestamp),
            endtime=microseconds(end_timestamp),
            select_events=select_events,
            select_dimensions=select_dimensions,
        )

    def _inspect(self, kind: str) -> None:
        if self.initialize_metric.empty:
            _say("Trace events corresponding to DataLoaderIter initialization are not present")
            return
        made = self.initialize_metric[self.initialize_metric["framework_metric"] == kind]
        if made.empty:
            _say(f"Training is not configured to use {kind} iterator")
            return
        pinned, workers = (
            ", ".join(map(str, made["pin_memory"].unique())),
            ", ".join(map(str, made["num_workers"].unique())),
        )
        _say(
            f"Training is configured to use {kind} with pin_memory enabled = {pinned} and number of workers = {workers}"
        )
        _say(f"The {kind} is initialized for {len(made)} times during training")
        _say_durations(made, "initialization of iterators")
        columns = ["start_time", "end_time", "duration_us"]
        header = "Start time and End time for iterator initialization that are outliers (duration > 2 * median)"
        slow = _outliers(made, "duration_us", columns, header, "")
        if slow is not None:
            _say(slow.to_string(index=False))

    def _show_inside(self, slow: pd.DataFrame, select_events: Sequence[str], select_dimensions: Sequence[str]) -> None:
        """Print what ran and how the machine was used in the slow batches."""
        starts, ends = (
            [microseconds(time) for time in slow[column]] for column in ("previous_batch_start", "start_time")
        )
        events = self.pd_data_frame.framework_metrics_reader.columns()
        wanted = events[matching_events(events, select_events)]
        inside = np.zeros(len(wanted), bool)
        for begin, end in zip(starts, ends, strict=True):
            inside |= (wanted.start_us < end) & (wanted.end_us > begin)
        within = wanted[inside]
        spent = pd.Series(within.duration_us / 1e6, dtype=float).groupby(within.name.decode()).agg(["sum", "count"])
        _say("Events in these batches, seconds in all and how often:")
        _say(spent.sort_values("sum", ascending=False).head(20).to_string())
        system = self.pd_data_frame.get_all_system_metrics()
        at_us = system["timestamp_us"].to_numpy() + self.pd_data_frame.start_time
        inside = np.zeros(len(system), bool)
        for begin, end in zip(starts, ends, strict=True):
            inside |= (at_us >= begin) & (at_us <= end)
        pattern = "|".join(f"(?:{each})" for each in select_dimensions)
        shown = system["dimension"].str.contains(pattern) | system["system_metric"].str.contains(pattern)
        means = system[inside & shown.to_numpy(bool)].groupby(["nodeID", "type", "dimension"])["value"].mean()
        _say("Mean of the system metrics in these batches:")
        _say(means.to_string())


def _batch_times(calls: pd.DataFrame) -> pd.DataFrame:
    """GetNext calls by process and end, with the time since the process's call before."""
    times = {column: pd.to_datetime(calls[column], format=_TEXT) for column in ("start_time", "end_time")}
    ordered = calls.assign(**times).sort_values(by=["node_id", "pid", "end_time"])
    start = ordered.groupby(["node_id", "pid"])["start_time"]
    return ordered.assign(BatchTime_in_seconds=start.diff().dt.total_seconds(), previous_batch_start=start.shift())


def _outliers(frame: pd.DataFrame, column: str, shown: list[str], found: str, none: str) -> pd.DataFrame | None:
    slow = frame.loc[frame[column] >= 2 * frame[column].median(), shown].sort_values(by=[column], ascending=False)
    if slow.empty:
        _say(none)
        return None
    _say(found)
    return slow.reset_index(drop=True)


def _say_durations(frame: pd.DataFrame, of_what: str) -> None:
    median, most = frame["duration_us"].median(), frame["duration_us"].max()
    _say(f"Median Duration {median} and Maximum duration for {of_what} {most}")


def _say(text: str) -> None:
    if text:
        print(text)  # noqa: T201 - a notebook's reader sees it
