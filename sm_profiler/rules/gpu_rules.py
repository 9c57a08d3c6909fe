"""Rules about one metric of each GPU: LowGPUUtilization and GPUMemoryIncrease."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import attrs
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sm_profiler.folding.window import EvaluationWindow
from sm_profiler.formats.columns import Floats
from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.differences import Differences
from sm_profiler.rules.grouping import GPU_MEMORY, GPU_UTILIZATION, gpu_data_missing, natural_key, values_per_gpu
from sm_profiler.rules.parameters import count, length, percentile, positive
from sm_profiler.rules.quantile_sketch import QuantileSketch
from sm_profiler.rules.results import RuleResult
from sm_profiler.rules.rolling_series import EVERYTHING, Chunk, RollingCondition, RollingSeries, merge_series

VALUES = "values"
SEEN = "seen"  # in the evidence: number of values at the hit


@attrs.frozen
class DeviceDetails:
    """Evidence per node and device.

    Attributes:
        nodes: node → device → JSON object.
        last_timestamp: start of the last window that met the condition, in microseconds; None if none did.
        second: the time comes after the first node, where the service put it.
    """

    nodes: dict[str, dict[str, dict[str, float]]]
    last_timestamp: int | None
    second: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the report's details."""
        details: dict[str, Any] = dict(self.nodes)
        if self.last_timestamp is not None:
            details["last_timestamp"] = self.last_timestamp
        if self.second:
            order = [*list(self.nodes)[:1], "last_timestamp", *self.nodes]
            details = {key: details[key] for key in order if key in details}
        return details


class GpuRule(BuiltinRule):
    """Evaluates the latest values of a metric of each GPU; the parameters have a `patience`.

    Attributes:
        metric: dimension of the metric's rows.
        Condition: built with the parameters and the differences; evaluates the values named VALUES.
        asks_silent: the service evaluated GPUs again in windows without new values.
    """

    metric: ClassVar[str]
    Condition: ClassVar[type[Any]]
    asks_silent: ClassVar[bool] = False

    def start(self) -> None:
        """Set up the state of the fold."""
        self._condition: RollingCondition = self.Condition(self.parameters, self.differs)
        self._series: dict[tuple[str, str], RollingSeries] = {}
        self._has_hits = False
        self._nodes: dict[str, dict[str, dict[str, float]]] = {}  # as it went: described at the last hit of each GPU
        self._last: tuple[str, str] | None = None  # GPU that was evaluated last

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Append the window's values of each GPU; return True if the condition has been met."""
        new = {(node, gpu): values for node, gpu, values in values_per_gpu(self.rows(window)[0], self.metric)}
        if self.asks_silent and self.differs.silent_gpus:
            new = {**dict.fromkeys(self._series, np.empty(0)), **new}
        for (node, gpu), values in new.items():
            exact = self.differs.all_values
            series = self._series.setdefault((node, gpu), RollingSeries(self._condition, exact=exact))
            self._last = node, gpu
            if series.feed(window.start_us, {VALUES: values}):
                self._has_hits = True
                if self.differs.as_it_went and series.last_hit:
                    seen = series.sketch(VALUES, series.last_hit[1].get(SEEN))
                    self._nodes.setdefault(node, {})[gpu] = self.describe(series.last_hit[1], seen)
        return self._has_hits

    @abstractmethod
    def describe(self, evidence: dict[str, float], values: QuantileSketch) -> dict[str, float]:
        """Return the details of a GPU from the evidence of its last hit and all its values."""

    def absorb(self, other: GpuRule) -> None:
        """Add the state of another part of the job."""
        merge_series(self._series, other._series)
        self._has_hits = any(series.hits for series in self._series.values())

    def result(self) -> RuleResult:
        """Return the hits of all GPUs."""
        if self.differs.as_it_went:
            return self._result_as_it_went()
        all_series = sorted(self._series.items(), key=lambda item: (natural_key(item[0][0]), natural_key(item[0][1])))
        nodes: dict[str, dict[str, dict[str, float]]] = {}
        for (node, gpu), series in all_series:
            if series.last_hit:
                nodes.setdefault(node, {})[gpu] = self.describe(series.last_hit[1], series.sketch(VALUES))
        last_hits = [series.last_hit[0] for _, series in all_series if series.last_hit]
        hits = sum(series.hits for _, series in all_series)
        datapoints = max((series.count(VALUES) for _, series in all_series), default=0)
        details = DeviceDetails(nodes, max(last_hits, default=None))
        missing = gpu_data_missing(datapoints, self.parameters.patience)
        return self._result(hits, hits, datapoints, details, missing)

    def _result_as_it_went(self) -> RuleResult:
        """Return the hits, with the data points of the GPU that was evaluated last."""
        hits = sum(series.hits for series in self._series.values())
        times = [series.last_hit[0] for series in self._series.values() if series.last_hit]
        nodes = {node: dict(gpus) for node, gpus in self._nodes.items()}
        datapoints = self._series[self._last].count(VALUES) if self._last else 0
        return self._result(hits, hits, datapoints, DeviceDetails(nodes, max(times, default=None), second=True))


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

    def describe(self, evidence: dict[str, float], values: QuantileSketch) -> dict[str, float]:
        """Return the percentiles of the last hit and the box plot of all values."""
        return {**evidence, **values.box().as_dict()}


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

    def describe(self, evidence: dict[str, float], values: QuantileSketch) -> dict[str, float]:
        """Return the last increase and the box plot of all values."""
        (p05,) = values.quantiles([0.05])
        return {"increase": evidence["increase"], "gpu_max": values.max, "p05": p05, **values.box().as_dict()}
