"""CPUBottleneck and IOBottleneck: GPUs are idle while CPU cores are busy, or wait for I/O."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import attrs
import numpy as np

from sm_profiler.folding import EvaluationWindow
from sm_profiler.formats.columns import EventColumns, Floats, Ints, Mask, SystemColumns
from sm_profiler.rules.base import (
    CPU_UTILIZATION,
    GPU_UTILIZATION,
    IO_WAIT,
    BuiltinRule,
    count,
    is_numbered,
    node_groups,
    percentile,
)
from sm_profiler.rules.results import KeyOrder, RuleResult
from sm_profiler.rules.statistics import TimeBreakdown

JOINT_SAMPLE_S = 0.02  # of the service: a row later than this after the first row of a data point opens the next one
SAMPLE_S = 0.05  # the metrics of one sample lie within this; the shortest sampling interval is twice as long
MAX_LISTED = 20_000  # bottlenecks listed in the details; all are counted


@attrs.frozen
class CPUBottleneckParameters:
    """Percentages, and the number of data points before which the rule is silent."""

    threshold: float = percentile(50)
    cpu_threshold: float = percentile(90)
    gpu_threshold: float = percentile(10)
    patience: int = count(1000)


@attrs.frozen
class IOBottleneckParameters:
    """Percentages, and the number of data points before which the rule is silent."""

    threshold: float = percentile(50)
    io_threshold: float = percentile(50)
    gpu_threshold: float = percentile(10)
    patience: int = count(1000)


@attrs.define
class _WindowCounts:
    datapoints: int = 0
    bottlenecks: int = 0
    breakdown: TimeBreakdown | None = None

    def merge(self, other: _WindowCounts) -> None:
        self.datapoints += other.datapoints
        self.bottlenecks += other.bottlenecks
        if other.breakdown:
            self.breakdown = self.breakdown or TimeBreakdown()
            self.breakdown.merge(other.breakdown)


@attrs.define
class _Totals:
    """Totals over the first windows of the job."""

    windows: int = 0
    datapoints: int = 0
    bottlenecks: int = 0
    triggered: int = 0
    breakdown: TimeBreakdown = attrs.field(factory=TimeBreakdown)

    def add(self, counts: _WindowCounts, exceeds: Callable[[int, int], bool]) -> None:
        """Evaluate the next window."""
        self.windows += 1
        self.datapoints += counts.datapoints
        self.bottlenecks += counts.bottlenecks
        if exceeds(self.bottlenecks, self.datapoints):
            self.triggered += 1
            self.breakdown.merge(counts.breakdown or TimeBreakdown())

    def copy(self) -> _Totals:
        """Return totals that can be continued without changing these."""
        breakdown = TimeBreakdown()
        breakdown.merge(self.breakdown)
        return attrs.evolve(self, breakdown=breakdown)


class Bottleneck(BuiltinRule):
    """Base of the two rules; a subclass names the metric of a hot core and its threshold."""

    hot_dimension: ClassVar[str] = ""

    @property
    @abstractmethod
    def hot_threshold(self) -> float:
        """Percentage above which a core is hot."""

    def start(self) -> None:
        self._datapoints = self._bottlenecks = self._idle_points = 0
        self._listed: dict[tuple[float, str], tuple[int, int]] = {}  # time in seconds, node → idle GPUs, hot cores
        self._windows: dict[int, _WindowCounts] = {}  # by start
        self._totals = _Totals()
        self._saw_gpu = False
        if self.differs.joint_points:
            self._last_start_s = 0.0  # of the last data point
            self._idle_at: dict[float, set[tuple[str, str]]] = {}  # node and GPU, by the time of a data point
            self._hot_at: dict[float, set[tuple[str, str]]] = {}
            self._order = KeyOrder()
            self._order.add(("low_gpu_utilization", "bottlenecks"))

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Count the window's data points and bottlenecks; return True if their ratio exceeds the threshold."""
        if self.differs.joint_points:
            return self._evaluate_joint_points(window)
        counts = self._windows.setdefault(window.start_us, _WindowCounts())
        before = counts.datapoints, counts.bottlenecks
        system = window.new_system
        idle, hot = self._idle_and_hot(system)
        own_rows = list(system.node.groups())
        events: EventColumns | None = None
        own_events: dict[str, Ints] = {}
        for node, rows in own_rows:
            in_order = rows[np.argsort(system.timestamp[rows], kind="stable")]
            times = self._add_points(system[in_order], node, counts, idle[in_order], hot[in_order])
            if times:
                if events is None:
                    events = window.events
                    own_events = node_groups(events.node)
                # A single node's events are its own, even if no process has its name; a numbered node has others.
                alone = len(own_rows) == 1 and not is_numbered(node)
                everything = np.arange(len(events) if alone else 0)
                counts.breakdown = counts.breakdown or TimeBreakdown()
                add_events_at(counts.breakdown, events, np.asarray(times), own_events.get(node, everything))
        self._datapoints += counts.datapoints - before[0]
        self._bottlenecks += counts.bottlenecks - before[1]
        return self._exceeds(self._bottlenecks, self._datapoints)

    def _evaluate_joint_points(self, window: EvaluationWindow) -> bool:
        """Count data points of all nodes together, as the service did.

        They multiply on several nodes, and a slow sample makes two. Idle GPUs and hot cores are remembered by time, so
        those of nodes that share a time count together.
        """
        rows, events = self.rows(window)
        (point_of_row, times, opened), self._last_start_s = joint_points(rows.timestamp, self._last_start_s)
        for mask, known in zip(self._idle_and_hot(rows), (self._idle_at, self._hot_at), strict=True):
            devices = np.stack([point_of_row[mask], rows.node.codes[mask], rows.name.codes[mask]])
            for point, node, name in np.unique(devices, axis=1).T.tolist():
                known.setdefault(float(times[point]), set()).add((rows.node.values[node], rows.name.values[name]))
        both = [
            time_s for time_s in dict.fromkeys(times.tolist()) if time_s in self._idle_at and time_s in self._hot_at
        ]
        for time_s in both:
            self._listed[time_s, ""] = len(self._idle_at[time_s]), len(self._hot_at[time_s])
        breakdown = TimeBreakdown()
        counts = _WindowCounts(opened, len(self._listed) - self._bottlenecks, breakdown)
        self._datapoints, self._bottlenecks = self._datapoints + opened, len(self._listed)
        self._idle_points = len(self._idle_at)
        exceeds = self._exceeds(self._bottlenecks, self._datapoints)
        if exceeds:
            add_events_at(breakdown, events, np.asarray(both))
        self._totals.add(counts, self._exceeds)
        if exceeds:
            self._order.add(self._shares(self._totals.breakdown))
        return exceeds

    def _shares(self, breakdown: TimeBreakdown) -> dict[str, Any]:
        return breakdown.shares(in_order=self.differs.as_it_went, swapped=self.differs.swapped)

    def _exceeds(self, bottlenecks: int, datapoints: int) -> bool:
        limits = self.parameters
        return bool(datapoints > limits.patience and 100 * bottlenecks / datapoints > limits.threshold)

    def _idle_and_hot(self, rows: SystemColumns) -> tuple[Mask, Mask]:
        """Return which rows show an idle GPU, and which a hot core."""
        is_gpu = rows.dimension.mask(GPU_UTILIZATION)
        self._saw_gpu = self._saw_gpu or bool(is_gpu.any())
        idle = is_gpu & (rows.value < self.parameters.gpu_threshold)
        return idle, rows.dimension.mask(self.hot_dimension) & (rows.value > self.hot_threshold)

    def _add_points(self, rows: SystemColumns, node: str, counts: _WindowCounts, idle: Mask, hot: Mask) -> list[float]:
        """Count the samples of one node's rows; return the times of the bottlenecks."""
        sample_of_row, times, samples = split_samples(rows.timestamp)
        counts.datapoints += samples
        idle_gpus = names_per_point(rows, sample_of_row, idle, len(times))
        hot_cores = names_per_point(rows, sample_of_row, hot, len(times))
        self._idle_points += int((idle_gpus > 0).sum())
        found = np.flatnonzero((idle_gpus > 0) & (hot_cores > 0))
        for sample in found:
            self._listed[float(times[sample]), node] = int(idle_gpus[sample]), int(hot_cores[sample])
        if len(self._listed) > 2 * MAX_LISTED:
            self._keep_earliest()
        counts.bottlenecks += len(found)
        return [float(time_s) for time_s in times[found]]

    def absorb(self, other: Bottleneck) -> None:
        self._datapoints += other._datapoints
        self._bottlenecks += other._bottlenecks
        self._idle_points += other._idle_points
        self._saw_gpu = self._saw_gpu or other._saw_gpu
        self._listed |= other._listed
        self._keep_earliest()
        self._totals = _Totals()
        for start_us, theirs in other._windows.items():
            self._windows.setdefault(start_us, _WindowCounts()).merge(theirs)

    def _keep_earliest(self) -> None:
        """Bound the list: which points it keeps depends neither on the order of arrival nor on the parts of a job."""
        self._listed = dict(sorted(self._listed.items())[:MAX_LISTED])

    def result(self) -> RuleResult:
        """Evaluate window by window, in the order of time."""
        if self.differs.joint_points:
            found = self._order.apply(self._details(self._totals))
            return self._result(self._totals.triggered, self._bottlenecks, self._datapoints, found)
        self._keep_earliest()
        # Totals of all windows but the last are kept between calls: only the last one can still grow.
        starts = sorted(self._windows)
        for start_us in starts[self._totals.windows : -1]:
            self._totals.add(self._windows[start_us], self._exceeds)
        totals = self._totals.copy()
        for start_us in starts[totals.windows :]:
            totals.add(self._windows[start_us], self._exceeds)
        not_evaluated = None
        if not self._saw_gpu:
            not_evaluated = "no GPU metrics: a bottleneck is a busy CPU while a GPU waits"
        elif totals.datapoints <= self.parameters.patience:
            not_evaluated = f"{totals.datapoints} data points, patience is {self.parameters.patience}"
        details = self._details(totals)
        return self._result(totals.triggered, self._bottlenecks, self._datapoints, details, not_evaluated)

    def _details(self, totals: _Totals) -> dict[str, Any]:
        """Return idle GPUs and hot cores of each bottleneck by its time, and what ran then, if the rule fired."""
        listed = {
            str(time_s): {"GPUs": gpus, "CPUs": cores}
            for time_s, (gpus, cores) in sum_by_time(self._listed.items()).items()
        }
        shares = self._shares(totals.breakdown) if totals.triggered else {}
        return {"low_gpu_utilization": self._idle_points, "bottlenecks": listed, **shares}


class CPUBottleneck(Bottleneck):
    """Fires if in more than `threshold` % of the data points a GPU is below `gpu_threshold` % and a core above `cpu_threshold` %."""

    Parameters = CPUBottleneckParameters
    hot_dimension = CPU_UTILIZATION

    @property
    def hot_threshold(self) -> float:
        """Percentage above which a core is busy."""
        return float(self.parameters.cpu_threshold)


class IOBottleneck(Bottleneck):
    """Fires if in more than `threshold` % of the data points a GPU is below `gpu_threshold` % and a core waits for I/O more than `io_threshold` % of the time."""

    Parameters = IOBottleneckParameters
    hot_dimension = IO_WAIT

    @property
    def hot_threshold(self) -> float:
        """Percentage of time above which a core counts as waiting for I/O."""
        return float(self.parameters.io_threshold)


def sum_by_time(points: Iterable[tuple[tuple[float, str], tuple[int, int]]]) -> dict[float, tuple[int, int]]:
    """Add up the idle GPUs and hot cores of all nodes at each time."""
    sums: dict[float, tuple[int, int]] = {}
    for (time_s, _), (gpus, cores) in points:
        before = sums.get(time_s, (0, 0))
        sums[time_s] = before[0] + gpus, before[1] + cores
    return sums


def split_samples(times: Floats) -> tuple[Ints, Floats, int]:
    """Group one node's rows, in time order, into samples.

    Returns:
        Sample of each row, time of each sample, number of samples.
    """
    if len(times) == 0:
        return np.empty(0, np.int64), np.empty(0), 0
    opens: Mask = np.diff(times, prepend=-np.inf) > SAMPLE_S
    firsts = times[opens][np.cumsum(opens) - 1]
    if (times - firsts).max() > SAMPLE_S:  # denser than samples can be: split by the distance from the first row
        first = -np.inf
        for index, moment in enumerate(times.tolist()):
            opens[index] = moment - first > SAMPLE_S
            first = moment if opens[index] else first
    return np.cumsum(opens) - 1, times[opens], int(opens.sum())


def names_per_point(rows: SystemColumns, points: Ints, chosen: Mask, size: int) -> Ints:
    """Return the number of distinct names of the chosen rows in each data point, shape (size,)."""
    width = len(rows.name.values) + 1
    own = np.flatnonzero(chosen)
    if not len(own):
        return np.zeros(size, np.int64)
    pairs = np.unique(points[own] * width + rows.name.codes[own])
    return np.bincount(pairs // width, minlength=size)


def add_events_at(breakdown: TimeBreakdown, events: EventColumns, times: Floats, among: Ints | None = None) -> None:
    """Add each event (of the rows `among`) once for each time (in seconds) that lies strictly within it."""
    if len(events) == 0 or len(times) == 0:
        return
    times_us = times * 1e6
    order = np.argsort(times_us, kind="stable")
    ascending = times_us[order]
    starts, durations = events.start_us, events.duration_us
    if among is not None:
        starts, durations = starts[among], durations[among]
    begin = np.searchsorted(ascending, starts, side="right")
    end = np.searchsorted(ascending, starts + durations, side="left")
    rows = np.flatnonzero(end > begin)
    begin, end = begin[rows], end[rows]
    # The report lists keys in order of first appearance: time by time, event by event.
    first = order[begin]
    if (np.diff(order) < 0).any():  # times of several nodes: the first in the list may not be the earliest
        first = np.asarray([order[a:b].min() for a, b in zip(begin, end, strict=True)], np.int64)
    by_appearance = np.argsort(first, kind="stable")
    chosen = rows[by_appearance] if among is None else among[rows[by_appearance]]
    breakdown.add(events, chosen, (end - begin)[by_appearance])


def joint_points(times: Floats, last_start_s: float) -> tuple[tuple[Ints, Floats, int], float]:
    """Group rows of all nodes into data points as the service did, in their order.

    Returns:
        (data point of each row, time of each point, number of points opened), and the time of the last point.
    """
    if len(times) == 0:
        return (np.empty(0, np.int64), np.empty(0), 0), last_start_s
    changes = np.flatnonzero(np.diff(times, prepend=np.nan) != 0)
    starts, points = [], np.empty(len(changes), np.int64)
    opened = 0
    for index, moment in enumerate(times[changes].tolist()):
        if abs(moment - last_start_s) > JOINT_SAMPLE_S:
            last_start_s = moment
            starts.append(last_start_s)
            opened += 1
        elif not starts:
            starts.append(last_start_s)  # continues a point of the window before
        points[index] = len(starts) - 1
    lengths = np.diff(changes, append=len(times))
    return (np.repeat(points, lengths), np.asarray(starts), opened), last_start_s
