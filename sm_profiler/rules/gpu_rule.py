"""Base of the rules about one metric of each GPU."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import attrs
import numpy as np

from sm_profiler.folding.window import EvaluationWindow
from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.grouping import gpu_data_missing, natural_key, values_per_gpu
from sm_profiler.rules.quantile_sketch import QuantileSketch
from sm_profiler.rules.results import RuleResult
from sm_profiler.rules.rolling_series import RollingCondition, RollingSeries, merge_series

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
