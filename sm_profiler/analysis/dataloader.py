"""`PT_dataloader_analysis`: time that PyTorch's data loading takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sm_profiler.analysis.pandas_frame import PandasFrame
from sm_profiler.analysis.readers import ProfileLocation, matching_events, training_events
from sm_profiler.analysis.times import TIME_TEXT, microseconds
from sm_profiler.formats import event_names
from sm_profiler.formats.recorded import DataStages
from sm_profiler.metrics.record_fold import read_args

if TYPE_CHECKING:
    from sm_profiler.analysis.timeline_charts import TimelineCharts

_COLUMNS = ["process", "stage", "ms_per_element", "ms_per_batch", "parallelism", "file", "line", "function"]
_ITERATORS = ("_MultiProcessingDataLoaderIter.__init__", "_SingleProcessDataLoaderIter.__init__")
_ANY = (".*",)
# anywhere in a name, as in smdebug, whose files have no events of fetches
_WORKER = (
    rf"{event_names.DATALOADER_WORKER}(?!{event_names.DATALOADER_FETCH.removeprefix(event_names.DATALOADER_WORKER)})"
)


class PT_dataloader_analysis:  # the known name
    """Print statistics of data loading and return outliers (twice the median or more) as frames.

    Attributes:
        pd_data_frame: the `PandasFrame` that is analyzed.
        dataIter_metric: frame of GetNext calls.
        initialize_metric: frame of iterator initializations.
        dataWorker_metric: frame of worker processes.
    """

    def __init__(self, pandas_frame: PandasFrame | ProfileLocation) -> None:
        """Read the events of data loading.

        Args:
            pandas_frame: a PandasFrame, or the location of a profile.

        Raises:
            SourceError: the profile does not exist or cannot be reached.
        """
        self.pd_data_frame = pandas_frame if isinstance(pandas_frame, PandasFrame) else PandasFrame(pandas_frame)
        ask = self.pd_data_frame.get_all_dataloader_metrics
        self.dataIter_metric = ask([".*DataLoaderIter::GetNext"])
        self.initialize_metric = ask([event_names.DATALOADER_INITIALIZE])
        self.dataWorker_metric = ask([_WORKER])

    def analyze_dataloaderIter_initialization(self) -> None:  # the known name
        """Print how often iterators were initialized, with how many workers, and how long it took."""
        if self.initialize_metric.empty:
            _print("Trace events corresponding to DataLoaderIter initialization are not present")
            return
        for kind in _ITERATORS:
            self._inspect(kind)

    def analyze_dataloaderWorkers(self) -> pd.DataFrame | None:  # the known name
        """Print number and lifetime of worker processes.

        Returns:
            The workers that lived twice the median or more: start_time, end_time, duration_us, worker_id; None if there
            are none.
        """
        if self.dataWorker_metric.empty:
            _print("Trace events corresponding to DataLoaderWorker processes are not present")
            return None
        _print(f"Total number of workers spun off during the training {len(self.dataWorker_metric)}")
        _print_durations(self.dataWorker_metric, "worker processes")
        return _outliers(
            self.dataWorker_metric,
            "duration_us",
            ["start_time", "end_time", "duration_us", "worker_id"],
            "Start time and End time for worker processes that are outliers (duration > 2 * median)",
            "No outliers found in dataloader workers",
        )

    def analyze_dataloader_getnext(self) -> pd.DataFrame | None:
        """Print number and duration of GetNext calls.

        Returns:
            The calls that took twice the median or more: start_time, end_time, duration_us, worker_id; None if there are
            none.
        """
        if self.dataIter_metric.empty:
            _print("Trace events corresponding to DataLoaderIter::GetNext calls are not present")
            return None
        _print(f"Total number of GetNext calls made during the training {len(self.dataIter_metric)}")
        _print_durations(self.dataIter_metric, "GetNext calls")
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
        """Print the time from each batch to the next, and what ran in slow ones.

        Args:
            start_timestamp: start of a time range, as text from a frame or in microseconds since the epoch; default: the
                start of the job.
            end_timestamp: end of the range; default: the end of the job.
            select_events: regular expressions for names and phases of events to print.
            select_dimensions: regular expressions for dimensions and names of system metrics to print.

        Returns:
            The batches that took twice the median or more: previous_batch_start, start_time, BatchTime_in_seconds,
            worker_id; None if there are none.

        Raises:
            SourceError: a time or regular expression is not valid.
        """
        if self.dataIter_metric.empty:
            _print("Trace events corresponding to DataLoaderIter::GetNext calls are not present")
            return None
        self.dataIter_metric = _batch_times(self.dataIter_metric)
        calls = self.dataIter_metric
        if start_timestamp is not None or end_timestamp is not None:
            zero = self.pd_data_frame.start_time
            begin = -np.inf if start_timestamp is None else microseconds(start_timestamp) - zero
            end = np.inf if end_timestamp is None else microseconds(end_timestamp) - zero
            calls = calls[(calls["start_time_us"] >= begin) & (calls["end_time_us"] <= end)]
        if not calls["BatchTime_in_seconds"].notna().any():
            first, last = self.dataIter_metric["start_time"].min(), self.dataIter_metric["end_time"].max()
            _print(
                f"There are no two GetNext calls of a process in this range; those of the job are from {first} to {last}"
            )
            return None
        _print(f"Median time spent on each batch of data = {calls['BatchTime_in_seconds'].median()} seconds")
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
        """Draw charts of the system metrics in a time range.

        Args:
            start_timestamp: start of the range, as text from a frame or in microseconds since the epoch.
            end_timestamp: end of the range.
            select_events: regular expressions for devices (`cpu0`, `total` …).
            select_dimensions: regular expressions for dimensions.

        Raises:
            SourceError: a time is not valid.
            ConfigError: a regular expression is not valid.
        """
        from sm_profiler.analysis.timeline_charts import TimelineCharts  # Bokeh is slow to load

        return TimelineCharts(
            self.pd_data_frame.system_metrics_reader,
            self.pd_data_frame.framework_metrics_reader,
            starttime=microseconds(start_timestamp),
            endtime=microseconds(end_timestamp),
            select_events=select_events,
            select_dimensions=select_dimensions,
        )

    def _inspect(self, kind: str) -> None:
        made = self.initialize_metric[self.initialize_metric["framework_metric"] == kind]
        if made.empty:
            _print(f"Training is not configured to use {kind} iterator")
            return
        pinned, workers = (
            ", ".join(map(str, made["pin_memory"].unique())),
            ", ".join(map(str, made["num_workers"].unique())),
        )
        _print(
            f"Training is configured to use {kind} with pin_memory enabled = {pinned} and number of workers = {workers}"
        )
        _print(f"The {kind} is initialized for {len(made)} times during training")
        _print_durations(made, "initialization of iterators")
        columns = ["start_time", "end_time", "duration_us"]
        header = "Start time and End time for iterator initialization that are outliers (duration > 2 * median)"
        slow = _outliers(made, "duration_us", columns, header, "")
        if slow is not None:
            _print(slow.to_string(index=False))

    def _show_inside(self, slow: pd.DataFrame, select_events: Sequence[str], select_dimensions: Sequence[str]) -> None:
        """Print the events and the mean system metrics in the slow batches."""
        starts, ends = (
            [microseconds(time) for time in slow[column]] for column in ("previous_batch_start", "start_time")
        )
        events = self.pd_data_frame.framework_metrics_reader.columns()
        wanted = events[matching_events(events, select_events) & training_events(events)]
        inside = np.zeros(len(wanted), bool)
        for begin, end in zip(starts, ends, strict=True):
            inside |= (wanted.start_us < end) & (wanted.end_us > begin)
        within = wanted[inside]
        spent = pd.Series(within.duration_us / 1e6, dtype=float).groupby(within.name.decode()).agg(["sum", "count"])
        _print("Events in these batches (total seconds and count):")
        _print(spent.sort_values("sum", ascending=False).head(20).to_string())
        system = self.pd_data_frame.get_all_system_metrics()
        at_us = system["timestamp_us"].to_numpy() + self.pd_data_frame.start_time
        inside = np.zeros(len(system), bool)
        for begin, end in zip(starts, ends, strict=True):
            inside |= (at_us >= begin) & (at_us <= end)
        pattern = "|".join(f"(?:{each})" for each in select_dimensions)
        shown = system["dimension"].str.contains(pattern) | system["system_metric"].str.contains(pattern)
        means = system[inside & shown.to_numpy(bool)].groupby(["nodeID", "type", "dimension"])["value"].mean()
        _print("Mean system metrics in these batches:")
        _print(means.to_string())


class TF_dataloader_analysis(PT_dataloader_analysis):  # like its model
    """Print statistics of tf.data pipelines: the wait for each batch, and the time of each stage.

    The methods for batches are those of `PT_dataloader_analysis`; tf.data has threads instead of worker processes, so
    there are no events of workers.

    Attributes:
        dataIter_metric: frame of the batches in the dataloader window.
    """

    def __init__(self, pandas_frame: PandasFrame | ProfileLocation) -> None:
        """Read the events of pipelines.

        Args:
            pandas_frame: a PandasFrame, or the location of a profile.

        Raises:
            SourceError: the profile does not exist or cannot be reached.
        """
        super().__init__(pandas_frame)
        self.dataIter_metric = self.pd_data_frame.get_all_dataloader_metrics([".*::GetNext"])

    def analyze_stages(self) -> pd.DataFrame:
        """Return the stages of each process's pipeline, the slowest first, as TensorFlow measured them.

        Returns:
            One row a stage: process, stage, ms_per_element, ms_per_batch, parallelism, and file, line and function of
            the user's code, as far as they are known. Empty if TensorFlow's autotuning was off.
        """
        events = self.pd_data_frame.framework_metrics_reader.columns()
        found = events[events.phase.mask(event_names.DATA_STAGES)]
        latest: dict[str, DataStages] = {}
        for process, text in zip(found.node.decode(), found.args.decode(), strict=True):
            about = read_args(DataStages, text)
            if about.batches >= latest.get(process, about).batches:
                latest[process] = about
        rows = [
            {
                "process": process,
                "stage": stage.stage,
                "ms_per_element": None if stage.us is None else stage.us / 1e3,
                "ms_per_batch": None if stage.batch_us is None else stage.batch_us / 1e3,
                **{name: getattr(stage, name) for name in _COLUMNS[4:]},
            }
            for process, about in sorted(latest.items())
            for stage in about.stages
        ]
        return pd.DataFrame(rows, columns=_COLUMNS)


def _batch_times(calls: pd.DataFrame) -> pd.DataFrame:
    """Sort GetNext calls by process and end, and add the time since the previous call of the process."""
    times = {column: pd.to_datetime(calls[column], format=TIME_TEXT) for column in ("start_time", "end_time")}
    ordered = calls.assign(**times).sort_values(by=["node_id", "pid", "end_time"])
    start = ordered.groupby(["node_id", "pid"])["start_time"]
    return ordered.assign(BatchTime_in_seconds=start.diff().dt.total_seconds(), previous_batch_start=start.shift())


def _outliers(frame: pd.DataFrame, column: str, shown: list[str], found: str, none: str) -> pd.DataFrame | None:
    slow = frame.loc[frame[column] >= 2 * frame[column].median(), shown].sort_values(by=[column], ascending=False)
    if slow.empty:
        _print(none)
        return None
    _print(found)
    return slow.reset_index(drop=True)


def _print_durations(frame: pd.DataFrame, subject: str) -> None:
    median, most = frame["duration_us"].median(), frame["duration_us"].max()
    _print(f"Median Duration {median} and Maximum duration for {subject} {most}")


def _print(text: str) -> None:
    if text:
        print(text)
