"""Rules about GPUs: LowGPUUtilization, GPUMemoryIncrease, BatchSize, and LoadBalancing among the GPUs of a node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from copy import copy, deepcopy
from itertools import combinations
from typing import Any, ClassVar

import attrs
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sm_profiler.folding import EvaluationWindow
from sm_profiler.formats.columns import Floats, Ints, SystemColumns
from sm_profiler.formatting import natural_key
from sm_profiler.rules.base import (
    CPU_UTILIZATION,
    GPU_MEMORY,
    GPU_UTILIZATION,
    BuiltinRule,
    Differences,
    count,
    gpu_data_missing,
    length,
    names_by_node,
    percentile,
    positive,
    sums_per_moment,
    values_per_gpu,
)
from sm_profiler.rules.results import RuleResult
from sm_profiler.rules.statistics import QuantileSketch

Chunk = Mapping[str, Floats]  # values of one window by name, in time order

EVERYTHING = -1

VALUES = "values"
SEEN = "seen"  # in the evidence: number of values at the hit

Key = tuple[str, str]  # node, and GPU; "" for what belongs to the whole node

CPU, MEMORY = "cpu", "_memory"

EDGES = np.arange(0, 100, 2)  # 49 bins; the service leaves out values above 98 %
MAX_PAIRS_PER_WINDOW = 500  # with more pairs, distances are computed for results only, not in every window


class RollingCondition:
    """Decides on the newest values of a series; stateless."""

    needed = 0.0  # values after which an evaluation no longer depends on what came before the series
    look_back = 0  # earlier values of each name that an evaluation uses; EVERYTHING for all

    def check(self, before: dict[str, int], tails: Chunk, new: Chunk) -> tuple[int, Any]:
        """Return how often the condition is met, and the evidence of the last time.

        Args:
            before: number of values of each name before `new`.
            tails: the last `look_back` of those, followed by `new`.
            new: values of the window.
        """
        raise NotImplementedError


class RollingSeries:
    def __init__(self, condition: RollingCondition, *, exact: bool = False) -> None:
        self._condition, self._exact = condition, exact
        self._head: list[tuple[int, Chunk]] = []
        self._counts: dict[str, int] = {}
        self._tails: dict[str, Floats] = {}
        self._late: dict[str, QuantileSketch] = {}  # values after the head
        self._early_hits, self._late_hits = 0, 0
        self.last_hit: tuple[int, Any] | None = None  # start of the window, evidence
        self.first_us: int | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> RollingSeries:
        """Return a series that shares the arrays, which never change."""
        made = copy(self)
        vars(made).update(
            _head=list(self._head),
            _counts=dict(self._counts),
            _tails=dict(self._tails),
            _late=deepcopy(self._late, memo),
        )
        return made

    def feed(self, start_us: int, chunk: Chunk) -> int:
        """Append a window's values; return how often they meet the condition."""
        self.first_us = start_us if self.first_us is None else self.first_us
        before = {name: self._counts.get(name, 0) for name in chunk}
        nothing = np.empty(0)
        tails = {name: np.concatenate([self._tails.get(name, nothing), values]) for name, values in chunk.items()}
        hits, evidence = self._condition.check(before, tails, chunk)
        if self._exact or min(before.values(), default=0) < self._condition.needed:
            self._head.append((start_us, chunk))
            self._early_hits += hits
        else:
            self._late_hits += hits
            for name, values in chunk.items():
                self._late.setdefault(name, QuantileSketch()).add(values)
        if hits:
            self.last_hit = (start_us, evidence)
        for name, values in chunk.items():
            self._counts[name] = before[name] + len(values)
            look_back = self._condition.look_back
            self._tails[name] = (
                tails[name] if look_back == EVERYTHING else tails[name][-look_back:] if look_back else nothing
            )
        return hits

    def merge(self, other: RollingSeries) -> RollingSeries:
        """Return the series of both; their times must not overlap."""
        first, second = (self, other) if (self.first_us or 0) <= (other.first_us or 0) else (other, self)
        first.append(second)
        return first

    def append(self, later: RollingSeries) -> None:
        """Add a series whose values all came later."""
        head, late, late_hits = later._head, later._late, later._late_hits
        counts, tails = later._counts, later._tails
        replayed: dict[str, int] = {}
        for start_us, chunk in head:
            self.feed(start_us, chunk)
            for name, values in chunk.items():
                replayed[name] = replayed.get(name, 0) + len(values)
        if not late:
            return
        self._late_hits += late_hits
        for name, sketch in late.items():
            self._late.setdefault(name, QuantileSketch()).merge(sketch)
        for name, total in counts.items():
            self._counts[name] = self._counts.get(name, 0) + total - replayed.get(name, 0)
            self._tails[name] = tails[name]
        if late_hits and later.last_hit:
            self.last_hit = later.last_hit

    def nothing(self) -> Chunk:
        return dict.fromkeys(self._counts, np.empty(0))

    @property
    def hits(self) -> int:
        """Number of times that the condition was met."""
        return self._early_hits + self._late_hits

    def count(self, name: str) -> int:
        return self._counts.get(name, 0)

    def sketch(self, name: str, first: int | None = None) -> QuantileSketch:
        """Return all values of one name, or the first ones of an exact series."""
        total = QuantileSketch(exact=self._exact)
        if name in self._late:
            total.merge(self._late[name])
        for _, chunk in self._head:
            if name in chunk:
                total.add(chunk[name] if first is None else chunk[name][: max(first - total.count, 0)])
        return total


class SeriesRule(BuiltinRule):
    """Evaluates the latest values of each GPU or node.

    Attributes:
        Condition: built with the parameters and the differences.
        counted: name of the values that are the data points.
        asks_silent: the service evaluated GPUs and nodes again in windows without new values.
    """

    Condition: ClassVar[type[Any]]
    counted: ClassVar[str] = VALUES
    asks_silent: ClassVar[bool] = False

    def start(self) -> None:
        self._condition: RollingCondition = self.Condition(self.parameters, self.differs)
        self._series: dict[Key, RollingSeries] = {}
        self._has_hits = False
        self._nodes: dict[str, dict[str, dict[str, float]]] = {}  # as it went: described at the last hit of each GPU
        self._last: Key | None = None  # what was evaluated last

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Append the window's values; return True if the condition has been met."""
        new = self.values(window)
        if self.asks_silent and self.differs.silent_gpus:
            new = {key: {**series.nothing(), **new.get(key, {})} for key, series in self._series.items()} | {
                key: chunk for key, chunk in new.items() if key not in self._series
            }
        for key, chunk in new.items():
            series = self._series.setdefault(key, RollingSeries(self._condition, exact=self.differs.all_values))
            self._last = key if self.counted in chunk else self._last
            if series.feed(window.start_us, chunk):
                self._has_hits = True
                if self.differs.as_it_went and series.last_hit:
                    self._nodes.setdefault(key[0], {}).update(self.describe(key[1], series, series.last_hit[1]))
        return self._has_hits

    @abstractmethod
    def values(self, window: EvaluationWindow) -> dict[Key, dict[str, Floats]]:
        """Return the values of a window."""

    @abstractmethod
    def describe(self, gpu: str, series: RollingSeries, evidence: Any) -> dict[str, dict[str, float]]:
        """Return the details of each device from the evidence of the last hit and all values."""

    def missing(self, datapoints: int) -> str | None:
        """Return why the rule could not be evaluated; None if it could."""
        return gpu_data_missing(datapoints, self.parameters.patience)

    def absorb(self, other: Any) -> None:
        for key, series in other._series.items():
            self._series[key] = self._series[key].merge(series) if key in self._series else series
        self._has_hits = any(series.hits for series in self._series.values())

    def result(self) -> RuleResult:
        """Return all hits; as it went, with the data points of what was evaluated last."""
        hits = sum(series.hits for series in self._series.values())
        time_us = max((series.last_hit[0] for series in self._series.values() if series.last_hit), default=None)
        if self.differs.as_it_went:
            datapoints = self._series[self._last].count(self.counted) if self._last else 0
            details: dict[str, Any] = {node: dict(devices) for node, devices in self._nodes.items()}
            if (shown_us := self.shown_time(time_us)) is not None:
                order = [*list(details)[:1], "last_timestamp", *details]  # the service put it after the first node
                details["last_timestamp"] = shown_us
                details = {key: details[key] for key in order}
            return self._result(hits, hits, datapoints, details)
        details = {}
        for (node, gpu), series in sorted(self._series.items(), key=lambda item: tuple(map(natural_key, item[0]))):
            if series.last_hit:
                details.setdefault(node, {}).update(self.describe(gpu, series, series.last_hit[1]))
        if time_us is not None:
            details["last_timestamp"] = time_us
        datapoints = max((series.count(self.counted) for series in self._series.values()), default=0)
        return self._result(hits, hits, datapoints, details, self.missing(datapoints))

    def shown_time(self, last_us: int | None) -> int | None:
        """Return the time that the service showed: of the last window that met the condition."""
        return last_us


class GpuRule(SeriesRule):
    """Evaluates the latest values of a metric of each GPU; the parameters have a `patience`.

    Attributes:
        metric: dimension of the metric's rows.
    """

    metric: ClassVar[str]

    def values(self, window: EvaluationWindow) -> dict[Key, dict[str, Floats]]:
        found = values_per_gpu(self.rows(window)[0], self.metric)
        return {(node, gpu): {VALUES: values} for node, gpu, values in found}

    def describe(self, gpu: str, series: RollingSeries, evidence: dict[str, float]) -> dict[str, dict[str, float]]:
        seen = evidence.get(SEEN) if self.differs.as_it_went else None
        return {gpu: self.details(evidence, series.sketch(VALUES, None if seen is None else int(seen)))}

    @abstractmethod
    def details(self, evidence: dict[str, float], values: QuantileSketch) -> dict[str, float]:
        """Return the details of a GPU from the evidence of its last hit and its values."""


@attrs.frozen
class LowGPUUtilizationParameters:
    """Percentages; window and patience count the values of one GPU."""

    threshold_p95: float = percentile(70)
    threshold_p5: float = percentile(10)
    window: int = length(500)
    patience: int = count(1000)


class _LowUtilization(RollingCondition):
    def __init__(self, parameters: LowGPUUtilizationParameters, _: Differences) -> None:
        self.parameters = parameters
        self.needed = max(parameters.patience, parameters.window)
        self.look_back = parameters.window or EVERYTHING

    def check(self, before: dict[str, int], tails: Chunk, new: Chunk) -> tuple[int, dict[str, float]]:
        if before[VALUES] + len(new[VALUES]) <= self.parameters.patience:
            return 0, {}
        found = latest_utilization(tails[VALUES], self.parameters)
        return (1, found) if is_low(found, self.parameters) else (0, {})


def latest_utilization(values: Floats, parameters: LowGPUUtilizationParameters) -> dict[str, float]:
    """Return maximum and percentiles of the last `window` values."""
    last = values[-parameters.window :]
    return {
        "gpu_max": float(last.max()),
        "gpu_95": float(np.quantile(last, 0.95)),
        "gpu_5": float(np.quantile(last, 0.05)),
    }


def is_low(found: dict[str, float], parameters: LowGPUUtilizationParameters) -> bool:
    """Return True if a GPU is underutilized, or mostly busy and idle at times."""
    high, low = found["gpu_95"], found["gpu_5"]
    return high < parameters.threshold_p95 or (high > parameters.threshold_p95 and low < parameters.threshold_p5)


class LowGPUUtilization(GpuRule):
    """Fires for a GPU whose 95th percentile is below `threshold_p95`, or above it with the 5th below `threshold_p5`."""

    Parameters = LowGPUUtilizationParameters
    Condition = _LowUtilization
    metric = GPU_UTILIZATION
    asks_silent = True

    def details(self, evidence: dict[str, float], values: QuantileSketch) -> dict[str, float]:
        """Return the percentiles of the last hit and the box plot of all values."""
        return {**evidence, **values.box()}


@attrs.frozen
class GPUMemoryIncreaseParameters:
    """`increase` in percentage points; window and patience count the values of one GPU."""

    increase: float = positive(5)
    patience: int = count(1000)
    window: int = length(10)


class _Increase(RollingCondition):
    """The mean of the last `window` values is more than `increase` above that of the `window` values before.

    The service compared it with the values `[-window - 1 : -2]`.
    """

    def __init__(self, parameters: GPUMemoryIncreaseParameters, differs: Differences) -> None:
        self.parameters = parameters
        size = parameters.window
        self.earlier = size - 1 if differs.shifted else size  # values to compare with
        self.gap = 2 if differs.shifted else size  # values after them
        self.least = size + 2 if differs.shifted else 2 * size
        self.needed = max(parameters.patience + 1, self.least)
        self.look_back = self.least - 1

    def check(self, before: dict[str, int], tails: Chunk, new: Chunk) -> tuple[int, dict[str, float]]:
        size, values = self.parameters.window, tails[VALUES]
        count = len(values) - self.least + 1  # of values, the last ones, that have enough before them
        if count <= 0 or not len(new[VALUES]) or min(size, self.earlier) < 1:  # the mean of no values is no number
            return 0, {}
        last = sliding_window_view(values, size).mean(axis=-1)[-count:]
        earlier = sliding_window_view(values[: len(values) - self.gap], self.earlier).mean(axis=-1)[-count:]
        rise = (last - earlier)[-len(new[VALUES]) :]
        positions = before[VALUES] + len(new[VALUES]) - np.arange(len(rise) - 1, -1, -1)
        hit = (rise > self.parameters.increase) & (positions > self.parameters.patience)
        found = np.flatnonzero(hit)
        if not len(found):
            return 0, {}
        return len(found), {"increase": float(rise[found[-1]]), SEEN: int(positions[found[-1]])}


class GPUMemoryIncrease(GpuRule):
    """Fires at each value whose `window` last ones are on average more than `increase` points above the `window` before."""

    Parameters = GPUMemoryIncreaseParameters
    Condition = _Increase
    metric = GPU_MEMORY

    def details(self, evidence: dict[str, float], values: QuantileSketch) -> dict[str, float]:
        """Return the last increase and the box plot of all values."""
        (p05,) = values.quantiles([0.05])
        return {"increase": evidence["increase"], "gpu_max": values.max, "p05": p05, **values.box()}


@attrs.frozen
class BatchSizeParameters:
    """Percentages; window and patience count data points."""

    cpu_threshold_p95: float = percentile(70)
    gpu_threshold_p95: float = percentile(70)
    gpu_memory_threshold_p95: float = percentile(70)
    patience: int = count(1000)
    window: int = length(500)


class _Underutilized(RollingCondition):
    """A node's CPU is underutilized, as are a GPU and its memory; the evidence is a list of GPUs."""

    def __init__(self, parameters: BatchSizeParameters, _: Differences) -> None:
        self.parameters = parameters
        self.needed = max(parameters.patience, parameters.window) + 1
        self.look_back = parameters.window or EVERYTHING

    def check(self, before: dict[str, int], tails: Chunk, new: Chunk) -> tuple[int, list[str]]:
        gpus = underutilized_gpus({name: before[name] + len(new[name]) for name in new}, tails, self.parameters)
        return len(gpus), gpus


def underutilized_gpus(lengths: dict[str, int], last: Chunk, limits: BatchSizeParameters) -> list[str]:
    """Return the GPUs of a node that are underutilized together with their memory and the node's CPU."""
    size = limits.window

    def high(name: str) -> float:
        return float(np.quantile(last[name][-size:], 0.95))

    if lengths.get(CPU, 0) <= max(size, limits.patience) or high(CPU) >= limits.cpu_threshold_p95:
        return []
    gpus = [name for name in lengths if name != CPU and not name.endswith(MEMORY) and lengths[name] > size]
    gpus = [gpu for gpu in gpus if len(last.get(gpu + MEMORY, ()))]
    return [
        gpu
        for gpu in gpus
        if high(gpu) < limits.gpu_threshold_p95 and high(gpu + MEMORY) < limits.gpu_memory_threshold_p95
    ]


def node_values(system: SystemColumns, cores: dict[str, set[str]]) -> dict[str, dict[str, Floats]]:
    """Return the values of a window by node and name: mean CPU utilization, and use and memory of each GPU."""
    values: dict[str, dict[str, Floats]] = {}
    for node, sums in sums_per_moment(system, system.dimension.mask(CPU_UTILIZATION)):
        values.setdefault(node, {})[CPU] = sums / len(cores[node])
    for dimension, suffix in ((GPU_UTILIZATION, ""), (GPU_MEMORY, MEMORY)):
        for node, gpu, of_gpu in values_per_gpu(system, dimension):
            values.setdefault(node, {})[gpu + suffix] = of_gpu
    return values


class BatchSize(SeriesRule):
    """Fires for each GPU that is underutilized, as are its memory and its node's CPU (95th percentiles of the last values)."""

    Parameters = BatchSizeParameters
    Condition = _Underutilized
    counted = CPU
    asks_silent = True

    def start(self) -> None:
        super().start()
        self._cores: dict[str, set[str]] = {}
        self._saw_gpu = False
        self._first_us: int | None = None

    def values(self, window: EvaluationWindow) -> dict[Key, dict[str, Floats]]:
        """Return the values of each node."""
        self._first_us = window.start_us if self._first_us is None else self._first_us
        system = self.rows(window)[0]
        present = names_by_node(system, system.dimension.mask(CPU_UTILIZATION))
        self._add_cores(present)
        everywhere = self.differs.across_nodes
        cores = dict.fromkeys(present, set().union(*self._cores.values())) if everywhere else self._cores
        found = node_values(system, cores)
        self._saw_gpu = self._saw_gpu or any(set(chunk) != {CPU} for chunk in found.values())
        return {(node, ""): chunk for node, chunk in found.items()}

    def describe(self, gpu: str, series: RollingSeries, evidence: list[str]) -> dict[str, dict[str, float]]:
        """Return the box plots of a node's CPU, and of the use and memory of its underutilized GPUs."""
        found = {CPU: series.sketch(CPU).box()}
        for name in evidence if self.differs.as_it_went else sorted(evidence, key=natural_key):
            use = series.sketch(name)
            quartile = use.quantiles([0.25])[0] if self.differs.lent_quartile else None
            found[name] = use.box()
            found[name + MEMORY] = series.sketch(name + MEMORY).box(quartile)
        return found

    def _add_cores(self, cores: dict[str, set[str]]) -> None:
        for node, names in cores.items():
            self._cores.setdefault(node, set()).update(names)

    def absorb(self, other: BatchSize) -> None:
        super().absorb(other)
        self._add_cores(other._cores)
        self._saw_gpu = self._saw_gpu or other._saw_gpu

    def missing(self, datapoints: int) -> str | None:
        """Return why the rule could not be evaluated; None if it could."""
        patience = max(self.parameters.patience, self.parameters.window)
        return gpu_data_missing(datapoints if self._saw_gpu else 0, patience)

    def shown_time(self, last_us: int | None) -> int | None:
        """Return the time that the service showed: the first minute if there is a hit."""
        return self._first_us if self.differs.first_minute and self._nodes else last_us


@attrs.frozen
class LoadBalancingParameters:
    """`threshold`: distance between two GPUs' histograms, 0 (equal) to 0.83 (disjoint)."""

    threshold: float = positive(0.5, of_service=0.2)
    patience: int = count(1000)


@attrs.define
class _Histogram:
    bins: Ints = attrs.field(factory=lambda: np.zeros(len(EDGES) - 1, np.int64))
    count: int = 0

    def add(self, bins: Ints, count: int) -> None:
        self.bins = self.bins + bins
        self.count += count


class LoadBalancing(BuiltinRule):
    """Fires for each pair of GPUs of a node whose histograms of use differ by more than `threshold` (Jensen-Shannon distance)."""

    Parameters = LoadBalancingParameters

    def start(self) -> None:
        self._nodes: dict[str, dict[str, _Histogram]] = {}
        self._pairs = 0  # of GPUs of one node
        self._changed: set[str] = set()  # nodes with values that were not compared yet
        self._unbalanced: set[str] = set()

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Add the window's values of each GPU; return True if a pair is out of balance."""
        self._add(self.rows(window)[0])
        if self.differs.with_itself:
            return False
        if self._pairs <= MAX_PAIRS_PER_WINDOW:
            for node in self._changed:
                keep = self._unbalanced.add if self._distances(self._nodes[node]) else self._unbalanced.discard
                keep(node)
            self._changed.clear()
        return bool(self._unbalanced)

    def _add(self, system: SystemColumns) -> None:
        for node, gpu, values in values_per_gpu(system, GPU_UTILIZATION):
            histogram = self._histogram(node, gpu)
            histogram.add(np.histogram(values, EDGES)[0], len(values))

    def _histogram(self, node: str, gpu: str) -> _Histogram:
        """Return the histogram of a GPU, to which values will be added."""
        self._changed.add(node)
        gpus = self._nodes.setdefault(node, {})
        self._pairs += len(gpus) if gpu not in gpus else 0
        return gpus.setdefault(gpu, _Histogram())

    def _distances(self, gpus: dict[str, _Histogram]) -> dict[str, dict[str, float]]:
        """Return the distances above the threshold, by pairs of a node's GPUs."""
        patience, threshold = self.parameters.patience, self.parameters.threshold
        enough = [gpu for gpu in sorted(gpus, key=natural_key) if gpus[gpu].count > patience]
        distances = distances_of([gpus[gpu].bins.astype(np.float64) for gpu in enough])
        found: dict[str, dict[str, float]] = {}
        for (gpu, other), distance in zip(combinations(enough, 2), distances, strict=True):
            if distance > threshold:
                found.setdefault(gpu, {})[other] = float(distance)
        return found

    def absorb(self, other: LoadBalancing) -> None:
        for node, gpus in other._nodes.items():
            for gpu, histogram in gpus.items():
                self._histogram(node, gpu).add(histogram.bins, histogram.count)

    def result(self) -> RuleResult:
        """Compare every pair of GPUs of a node, over all values so far."""
        if self.differs.with_itself:
            return self._result(0, 0, self._datapoints(), self._details({}))
        self._nodes = {
            node: dict(sorted(gpus.items(), key=lambda item: natural_key(item[0])))
            for node, gpus in sorted(self._nodes.items(), key=lambda item: natural_key(item[0]))
        }
        distances = {node: found for node, gpus in self._nodes.items() if (found := self._distances(gpus))}
        triggered = sum(len(others) for pairs in distances.values() for others in pairs.values())
        datapoints = self._datapoints()
        not_evaluated = gpu_data_missing(datapoints, self.parameters.patience)
        if not_evaluated is None and all(len(gpus) == 1 for gpus in self._nodes.values()):
            not_evaluated = "one GPU per node: nothing to compare"
        return self._result(triggered, triggered, datapoints, self._details(distances), not_evaluated)

    def _datapoints(self) -> int:
        """Return the number of values of the last GPU of the last node."""
        last = next(reversed(self._nodes.values()), None)
        return next(reversed(last.values())).count if last else 0

    def _details(self, distances: Mapping[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
        """Return the histogram of each GPU, and of the pairs above the threshold their distance: node → GPU → other GPU."""
        details: dict[str, Any] = {
            node: {"workloads": {gpu: histogram.bins.tolist() for gpu, histogram in gpus.items()}}
            for node, gpus in self._nodes.items()
        }
        for node, found in distances.items():
            details[node]["distances"] = found
        return details


def distances_of(histograms: list[Floats]) -> Floats:
    """Return the Jensen-Shannon distance (natural logarithm) of each pair, in the order of itertools.combinations."""
    if len(histograms) < 2:  # a pair takes two
        return np.empty(0)
    shares = np.stack(histograms)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1)
    found = [_distances_to(shares[index], shares[index + 1 :]) for index in range(len(shares) - 1)]
    return np.concatenate(found)


def _distances_to(values: Floats, others: Floats) -> Floats:
    middle = (values + others) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [
            np.where(share > 0, share * np.log(share / middle), 0.0).sum(axis=1) for share in (values[None], others)
        ]
    distances: Floats = np.sqrt(np.maximum((parts[0] + parts[1]) / 2, 0))
    return distances
