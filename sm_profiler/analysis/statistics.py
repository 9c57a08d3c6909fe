"""`PandasFrameAnalysis`: statistics of a job, computed from its two frames."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sm_profiler.errors import SourceError
from sm_profiler.formats.event_names import STEP, STEP_GLOBAL, STEP_TRAIN
from sm_profiler.printable import logger_for

_log = logger_for(__name__)
_LOOP = (STEP_TRAIN, STEP_GLOBAL)
_STATISTICS = ("mean", "min", "max", "p50", "p95", "p99")
_QUANTILES = {0.5: "p50", 0.95: "p95", 0.99: "p99"}
_RANGES = ((90, 100), (10, 90), (0, 10))


def steps_around(framework: pd.DataFrame) -> NDArray[np.int64]:
    """Return the step of each event: its own, else the step of the same process that contains it, else -1."""
    steps = framework["step"].to_numpy(np.int64).copy()
    is_step = framework["framework_metric"].str.contains(STEP, regex=False).to_numpy(bool) & (steps != -1)
    unknown = steps == -1
    if not unknown.any() or not is_step.any():
        return steps
    start, end = framework["start_time_us"].to_numpy(float), framework["end_time_us"].to_numpy(float)
    node = pd.factorize(framework["nodeID"])[0]
    for each in np.unique(node[unknown]):
        around = np.flatnonzero(is_step & (node == each))
        rows = np.flatnonzero(unknown & (node == each))
        if not len(around):
            continue
        around = around[np.argsort(start[around], kind="stable")]
        before = np.searchsorted(start[around], start[rows], "left") - 1
        inside = around[np.maximum(before, 0)]
        fits = (before >= 0) & (end[inside] > end[rows])
        steps[rows[fits]] = steps[inside[fits]]
    return steps


def modes_around(framework: pd.DataFrame) -> NDArray[np.int64]:
    """Return a number for the mode of each event: that of the last step of the same process that started before it."""
    modes = np.zeros(len(framework), np.int64)
    is_step = framework["framework_metric"].str.contains(STEP, regex=False).to_numpy(bool)
    if not is_step.any():
        return modes
    names = pd.factorize(framework["framework_metric"])[0]
    start = framework["start_time_us"].to_numpy(float)
    node = pd.factorize(framework["nodeID"])[0]
    for each in np.unique(node[is_step]):
        steps, rows = np.flatnonzero(is_step & (node == each)), np.flatnonzero(node == each)
        steps = steps[np.argsort(start[steps], kind="stable")]
        begun = np.searchsorted(start[steps], start[rows], "right") - 1
        modes[rows] = names[steps[np.maximum(begun, 0)]]
    return modes


def phase_intervals(
    system: pd.DataFrame, framework: pd.DataFrame, phase: str | Sequence[str] | None
) -> pd.DataFrame | None:
    """Return the intervals of training phases; see `PandasFrameAnalysis.get_training_phase_intervals`."""
    processes = framework["process"].unique().tolist()
    if isinstance(phase, str):
        phase = [phase]
    if not (phase is None or isinstance(phase, list)):
        _log.warning("phase must be a list of strings, not %r", phase)
        return None
    phases = [each for each in (processes if phase is None else phase) if each in processes]
    phases = [each for each in phases if STEP in each] if phase is None else phases
    rows = framework[framework["framework_metric"].isin(phases)]
    if rows.empty:
        _log.warning("no event has one of the phases %r", phase)
        return None
    start, end = rows["start_time_us"].to_numpy(), rows["end_time_us"].to_numpy()
    names = rows["framework_metric"].to_numpy(object)
    if len(phases) > 1:
        first = np.flatnonzero(np.concatenate([[True], names[1:] != names[:-1]]))
        start, end, names = np.minimum.reduceat(start, first), np.maximum.reduceat(end, first), names[first]
    at = system["timestamp_us"]
    begin, finish = (start.min(), end.max()) if at.empty else (at.min(), at.max())
    return _with_gaps(start, end, names, begin, finish)


def label_times(times_us: Any, intervals: pd.DataFrame) -> pd.Categorical:
    """Return the phase that contains each time, both ends included; of several the last one, missing if none does."""
    times = np.asarray(times_us)
    order = np.argsort(times, kind="stable")
    ordered = times[order]
    names = pd.Categorical(intervals["phase"])
    codes = np.full(len(times), -1)
    first = np.searchsorted(ordered, intervals["start_time_us"].to_numpy(), "left")
    last = np.searchsorted(ordered, intervals["end_time_us"].to_numpy(), "right")
    for code, begin, end in zip(names.codes.tolist(), first.tolist(), last.tolist(), strict=True):
        codes[begin:end] = code
    labels = np.empty_like(codes)
    labels[order] = codes
    return pd.Categorical.from_codes(labels, categories=names.categories)


def _with_gaps(
    start: NDArray[Any], end: NDArray[Any], names: NDArray[np.object_], begin: Any, finish: Any
) -> pd.DataFrame:
    """Add intervals before, between and after the given ones."""
    count = len(start)
    starts, ends = np.empty(2 * count + 1, start.dtype), np.empty(2 * count + 1, end.dtype)
    labels = np.empty(2 * count + 1, object)
    starts[1::2], ends[1::2], labels[1::2] = start, end, names
    starts[2::2], ends[:-1:2] = end + 1, start - 1
    starts[0], ends[-1] = begin, finish
    labels[0], labels[-1] = f"Before {names[0]}", f"After {names[-1]}"
    labels[2:-1:2] = ["Between " + " and ".join(sorted(pair)) for pair in pairwise(names)]
    return pd.DataFrame({"start_time_us": starts, "end_time_us": ends, "phase": pd.Series(labels, dtype="str")})


class StatsBy(Enum):
    """Column that statistics are grouped by."""

    TRAINING_PHASE = "training_phase"
    FRAMEWORK_METRICS = "framework_metric"
    PROCESS = "process"


class Resource(Enum):
    """Kind of system metrics; the value is their `type`."""

    CPU = "cpu"
    GPU = "gpu"
    IO = "i/o"
    NETWORK = "network"
    MEMORY = "memory"


_ALL_RESOURCES = (Resource.CPU, Resource.GPU, Resource.MEMORY, Resource.IO, Resource.NETWORK)


class JobStats(dict[str, Any]):
    """Dictionary of figures, also available as attributes; a notebook shows it as a table.

    Keys: start_time, end_time, training_loop_start, training_loop_end (text); job_duration, training_loop_duration,
    initialization, finalization (microseconds); initialization_%, training_loop_%, finalization_% (percent).
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __repr__(self) -> str:
        return repr(self.to_frame())

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html())

    def to_frame(self) -> pd.DataFrame:
        return pd.DataFrame({0: pd.Series(dict(self), dtype=object)})


class PandasFrameAnalysis:
    """Statistics of a job, computed from its two frames, which stay unchanged.

    Attributes:
        sys_metrics_df: the system metrics.
        framework_metrics_df: the events, with `duration_us`. An event without a step has the step of the same process
            that contains it, -1 if none does.
    """

    def __init__(self, system_df: pd.DataFrame, framework_df: pd.DataFrame) -> None:
        """Make copies of the frames.

        Args:
            system_df: result of `PandasFrame.get_all_system_metrics`.
            framework_df: result of `PandasFrame.get_all_framework_metrics`.
        """
        self.sys_metrics_df = system_df.copy(deep=False)
        self.framework_metrics_df = framework_df.copy(deep=False)
        frame = self.framework_metrics_df
        frame["duration_us"] = frame["end_time_us"] - frame["start_time_us"]
        frame["step"] = steps_around(frame)

    def get_job_statistics(self) -> JobStats:
        """Return start, end, duration and shares of the job's initialization, training loop and finalization.

        Returns:
            A dictionary with start_time, end_time, training_loop_start, training_loop_end (text); job_duration,
            training_loop_duration, initialization, finalization (microseconds); initialization_%, training_loop_%,
            finalization_% (percent of job_duration). As in smdebug, initialization starts with the minute of the first
            system metrics, which may be up to a minute before start_time.

        Raises:
            SourceError: there are no system metrics, or the first training step was not recorded.
        """
        system, framework = self.sys_metrics_df, self.framework_metrics_df
        first = framework[framework["framework_metric"].isin(_LOOP) & (framework["step"] == 0)]
        if first.empty or system.empty:
            raise SourceError(
                "job statistics need system metrics and the first training step; one of them was not recorded"
            )
        begin, end = int(system["timestamp_us"].min()), int(system["timestamp_us"].max())
        loop_begin, loop_end = first["start_time_us"].iloc[0], framework["end_time_us"].max()
        duration = end - begin
        figures = JobStats(
            start_time=str(system["timestamp"].min()),
            end_time=str(system["timestamp"].max()),
            job_duration=duration,
            training_loop_start=first["start_time"].iloc[0],
            training_loop_end=str(framework["end_time"].max()),
            training_loop_duration=loop_end - loop_begin,
            initialization=loop_begin,
            finalization=end - loop_end,
        )
        for part in ("initialization", "training_loop", "finalization"):
            spent = figures["training_loop_duration" if part == "training_loop" else part]
            figures[f"{part}_%"] = spent / duration * 100 if duration else float("nan")
        return figures

    def get_step_statistics(self, by: StatsBy | Any = StatsBy.TRAINING_PHASE) -> pd.DataFrame | None:
        """Return statistics of the durations of steps, or of what runs in them.

        The duration of a group in a step is the time from its first start to its last end. Each process's steps count
        separately, and so do training and evaluation. Events outside of all steps are left out.

        Args:
            by: StatsBy.TRAINING_PHASE for steps, StatsBy.FRAMEWORK_METRICS or StatsBy.PROCESS for what runs in them.

        Returns:
            One row per group, with duration_{mean,min,max,p50,p95,p99}_us; None if `by` is not a StatsBy.
        """
        if not isinstance(by, StatsBy):
            _log.warning("by must be a StatsBy, not %r", by)
            return None
        frame, group = self.framework_metrics_df, by.value
        rows = frame["step"] != -1
        if by is StatsBy.TRAINING_PHASE:
            rows &= frame["framework_metric"].str.contains(STEP, regex=False)
            group = "framework_metric"
        keys = ["nodeID", "mode", "step", group]
        frame = frame.assign(mode=modes_around(frame))
        spans = frame.loc[rows].groupby(keys, observed=True).agg({"start_time_us": "min", "end_time_us": "max"})
        durations = (spans["end_time_us"] - spans["start_time_us"]).reset_index(name="duration_us")
        described = _described(durations, [group], "duration_us")
        described.columns = [by.value, *(f"duration_{name}_us" for name in _STATISTICS)]
        return described

    def get_phase_totals(self) -> pd.DataFrame:
        """Return the time of each phase in all steps together, and in how many of them it was recorded.

        Of short steps, the hook records the phases of every second, fourth … 256th, and of the others only the step itself:
        a sum over the events is one over `steps` of `all_steps`. What happens only in some steps, such as saving, was also
        recorded in fewer.

        Returns:
            One row per phase (and step) and mode: process, mode (its step's name), steps, all_steps, duration_sum_us.
        """
        frame = self.framework_metrics_df
        frame = frame.assign(mode=modes_around(frame))[frame["step"] != -1]
        keys = ["nodeID", "mode", "step"]
        is_step = frame["framework_metric"].str.contains(STEP, regex=False)
        steps = frame[is_step]
        counts = steps.drop_duplicates(keys).groupby("mode", observed=True).size()
        names = steps.groupby("mode", observed=True)["framework_metric"].first()
        groups = frame[frame["mode"].isin(counts.index)].groupby(["process", "mode"], observed=True)
        found = groups["duration_us"].sum().reset_index(name="duration_sum_us")
        in_steps = frame.drop_duplicates([*keys, "process"]).groupby(["process", "mode"], observed=True).size()
        found["steps"] = [int(in_steps[key]) for key in zip(found["process"], found["mode"], strict=True)]
        found["all_steps"] = [int(counts[mode]) for mode in found["mode"]]
        found["mode"] = [names[mode] for mode in found["mode"]]
        return found[["process", "mode", "steps", "all_steps", "duration_sum_us"]]

    def get_utilization_stats(
        self,
        resource: Resource | Sequence[Resource] | None = None,
        by: StatsBy | None = None,
        phase: str | Sequence[str] | None = None,
    ) -> pd.DataFrame | None:
        """Return statistics of the system metrics by resource and node.

        Args:
            resource: one resource or a list of them; default: all.
            by: StatsBy.TRAINING_PHASE for one row per phase (see `get_training_phase_intervals`).
            phase: keep only these phases; default: all.

        Returns:
            One row per resource and node (and phase), with utilization_{mean,min,max,p50,p95,p99} in the unit of the
            metrics; None if an argument has the wrong type.
        """
        resources = _resources(resource, _ALL_RESOURCES)
        is_known = by is None or isinstance(by, StatsBy)
        if not is_known:
            _log.warning("by must be a StatsBy such as StatsBy.TRAINING_PHASE, not %r", by)
        if resources is None:
            _log.warning("resource must be a Resource or a list of them, not %r", resource)
        if resources is None or not is_known:
            return None
        system, keys = self.sys_metrics_df, ["nodeID"]
        if by is StatsBy.TRAINING_PHASE:
            intervals = self.get_training_phase_intervals(phase)
            if intervals is None:
                return None
            system = system.assign(phase=label_times(system["timestamp_us"], intervals))
            keys = ["phase", "nodeID"]
        parts = []
        for each in resources:
            rows = system[system["type"].str.contains(each.value, regex=False)]
            if len(rows):
                described = _described(rows, keys, "value")
                described.insert(0, "Resource", each.value)
                parts.append(described)
        columns = ["Resource", *(["Training_phase"] if len(keys) > 1 else []), "nodeID"]
        columns += [f"utilization_{name}" for name in _STATISTICS]
        if not parts:
            return pd.DataFrame(columns=columns)
        described = pd.concat(parts, ignore_index=True)
        described.columns = columns
        return described

    def get_device_usage_stats(
        self,
        device: Resource | Sequence[Resource] | None = None,
        utilization_ranges: Sequence[tuple[float, float]] | None = None,
    ) -> pd.DataFrame:
        """Count the measurements of CPUs and GPUs by range of utilization.

        Args:
            device: Resource.CPU, Resource.GPU or a list of both; default: both.
            utilization_ranges: pairs of percent, ends included; a measurement counts in the first that contains it.
                Default: 90 to 100, 10 to 90, 0 to 10.

        Returns:
            One row per type and node, one column per range that is not empty; an empty frame if an argument has the wrong
            type.
        """
        devices = _resources(device, (Resource.CPU, Resource.GPU))
        ranges = list(_RANGES) if utilization_ranges is None else utilization_ranges
        if (
            devices is None or not isinstance(ranges, list) or not ranges or any(len(pair) != 2 for pair in ranges)
        ):  # a pair has two
            _log.warning(
                "device must be a Resource, not %r; utilization_ranges a list of pairs, not %r",
                device,
                utilization_ranges,
            )
            return pd.DataFrame()
        system = self.sys_metrics_df
        system = system[system["type"].isin([each.value for each in devices])]
        values = system["value"].to_numpy()
        which = np.full(len(values), -1)
        for number, (low, high) in reversed(list(enumerate(ranges))):
            which[(values >= low) & (values <= high)] = number
        inside = system[which >= 0]
        if inside.empty:
            return pd.DataFrame()
        groups = inside.groupby(["type", "nodeID", which[which >= 0]], observed=True)
        counted = groups.size().unstack(fill_value=0)  # one level becomes columns
        pairs = [tuple(ranges[int(number)]) for number in counted.columns.tolist()]
        order = sorted(range(len(pairs)), key=lambda place: pairs[place])
        counted = counted.iloc[:, order]
        counted.columns = pd.Index([pairs[place] for place in order], dtype=object, tupleize_cols=False)
        return counted.reset_index()

    def get_training_phase_intervals(self, phase: str | Sequence[str] | None = None) -> pd.DataFrame | None:
        """Return the intervals of training phases, and those before, between and after them.

        Args:
            phase: one name or a list of names (`Step:ModeKeys.TRAIN` …); default: all steps. Given several, consecutive
                steps of one phase are one interval; given one, each step is an interval.

        Returns:
            One row per interval, with start_time_us, end_time_us and phase (`Before …`, `Between … and …`, `After …` for
            the gaps); None if no event has such a phase.
        """
        return phase_intervals(self.sys_metrics_df, self.framework_metrics_df, phase)


def _resources(
    asked: Resource | Sequence[Resource] | None, everything: tuple[Resource, ...]
) -> tuple[Resource, ...] | None:
    found = everything if asked is None else (asked,) if isinstance(asked, Resource) else asked
    is_right = isinstance(found, (list, tuple)) and all(isinstance(each, Resource) for each in found)
    return tuple(found) if is_right else None


def _described(frame: pd.DataFrame, keys: list[str], column: str) -> pd.DataFrame:
    """Return mean, minimum, maximum and quantiles of a column by group, with the keys as columns."""
    if frame.empty:
        return pd.DataFrame(columns=[*keys, *_STATISTICS])
    groups = frame.groupby(keys, observed=True)[column]
    quantiles = (
        groups.quantile(np.array(list(_QUANTILES))).unstack().rename(columns=_QUANTILES)
    )  # one level becomes columns
    described = groups.agg(["mean", "min", "max"]).join(quantiles).astype(float)
    return described.reset_index()
