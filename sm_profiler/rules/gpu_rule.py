"""Base of the rules about one metric of each GPU."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import attrs

from sm_profiler.folding.window import EvaluationWindow
from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.grouping import gpu_data_missing, natural_key, values_per_gpu
from sm_profiler.rules.quantile_sketch import QuantileSketch
from sm_profiler.rules.results import RuleResult
from sm_profiler.rules.rolling_series import GrowingArray, RollingCondition, RollingSeries, merge_series

VALUES = "values"


@attrs.frozen
class DeviceDetails:
    """Evidence per node and device.

    Attributes:
        nodes: node → device → JSON object.
        last_timestamp: start of the last window that met the condition, in microseconds; None if none did.
    """

    nodes: dict[str, dict[str, dict[str, float]]]
    last_timestamp: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return the report's details."""
        details: dict[str, Any] = dict(self.nodes)
        if self.last_timestamp is not None:
            details["last_timestamp"] = self.last_timestamp
        return details


class GpuRule(BuiltinRule):
    """Evaluates the latest values of a metric of each GPU; the parameters have a `patience`.

    Attributes:
        metric: dimension of the metric's rows.
        Condition: built with the parameters; evaluates the values named VALUES.
    """

    metric: ClassVar[str]
    Condition: ClassVar[type[Any]]

    def start(self) -> None:
        """Set up the state of the fold."""
        self._condition: RollingCondition = self.Condition(self.parameters)
        self._series: dict[tuple[str, str], RollingSeries] = {}
        self._has_hits = False

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Append the window's values of each GPU; return True if the condition has been met."""
        for node, gpu, values in values_per_gpu(window.new_system, self.metric):
            series = self._series.setdefault((node, gpu), RollingSeries(self._condition))
            self._has_hits = bool(series.feed(window.start_us, {VALUES: values})) or self._has_hits
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


# --- compat="service" ------------------------------------------------------------------------------------------------


@attrs.frozen
class ServiceDeviceDetails(DeviceDetails):
    """Details with `last_timestamp` after the first node, where the service put it."""

    def as_dict(self) -> dict[str, Any]:
        """Return the report's details."""
        found = super().as_dict()
        order = [*list(self.nodes)[:1], "last_timestamp", *self.nodes]
        return {key: found[key] for key in order if key in found}


class ServiceGpuRule(GpuRule):
    """State of the service's computation: all values of each GPU, and details updated in place.

    The data points are those of the GPU that comes last.
    """

    def start(self) -> None:
        """Set up the state of the fold."""
        self._values: dict[tuple[str, str], GrowingArray] = {}
        self._nodes: dict[str, dict[str, dict[str, float]]] = {}
        self._hits = self._datapoints = 0
        self._last_timestamp: int | None = None

    def _hit(self, node: str, gpu: str, times: int, found: dict[str, float], window: EvaluationWindow) -> None:
        self._hits += times
        self._nodes.setdefault(node, {})[gpu] = found
        self._last_timestamp = window.start_us

    def result(self) -> RuleResult:
        """Return the service's numbers."""
        nodes = {node: dict(gpus) for node, gpus in self._nodes.items()}
        details = ServiceDeviceDetails(nodes, self._last_timestamp)
        return self._result(self._hits, self._hits, self._datapoints, details)
