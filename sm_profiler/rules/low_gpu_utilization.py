"""LowGPUUtilization: GPUs that are underutilized, or used in bursts."""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.folding.window import EvaluationWindow
from sm_profiler.formats.columns import Floats
from sm_profiler.rules.gpu_rule import VALUES, GpuRule, ServiceGpuRule
from sm_profiler.rules.grouping import GPU_UTILIZATION, values_per_gpu
from sm_profiler.rules.parameters import count, length, percentile
from sm_profiler.rules.quantile_sketch import Box, QuantileSketch
from sm_profiler.rules.rolling_series import Chunk, GrowingArray, RollingCondition


@attrs.frozen
class LowGPUUtilizationParameters:
    """Percentages; window and patience count the values of one GPU."""

    threshold_p95: float = percentile(70)
    threshold_p5: float = percentile(10)
    window: int = length(500)
    patience: int = count(1000)


class _LowUtilization(RollingCondition):
    def __init__(self, parameters: LowGPUUtilizationParameters) -> None:
        self.parameters = parameters
        self.needed = max(parameters.patience, parameters.window)
        self.look_back = parameters.window

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

    def describe(self, evidence: dict[str, float], values: QuantileSketch) -> dict[str, float]:
        """Return the percentiles of the last hit and the box plot of all values."""
        return {**evidence, **values.box().as_dict()}


# --- compat="service" ------------------------------------------------------------------------------------------------


class ServiceLowGPUUtilization(ServiceGpuRule, LowGPUUtilization, service_of=LowGPUUtilization):
    """LowGPUUtilization as the service computed it: GPUs are evaluated again in windows without new values."""

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Append the window's values of each GPU; return True if the condition has been met."""
        for node, gpu, values in values_per_gpu(window.system, self.metric):
            self._values.setdefault((node, gpu), GrowingArray()).add(values)
        for (node, gpu), series in self._values.items():
            self._datapoints = len(series)
            if len(series) > self.parameters.patience:
                found = latest_utilization(series.values, self.parameters)
                if is_low(found, self.parameters):
                    self._hit(node, gpu, 1, {**found, **Box.of_values(series.values).as_dict()}, window)
        return self._hits > 0
