"""LowGPUUtilization: GPUs that are under-used, or used in bursts."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.rules.gpu_rule import VALUES, GpuRule
from sm_profiler.rules.gpus import GPU_USE, per_gpu
from sm_profiler.rules.parameters import count, percentile
from sm_profiler.rules.quantile_sketch import Series, Spread, whole_box
from sm_profiler.rules.rolling_series import Chunk, Judge
from sm_profiler.rules.window import Window


@attrs.frozen
class LowGPUUtilizationParameters:
    """Percentages; window and patience count the values of one GPU."""

    threshold_p95: float = percentile(70)
    threshold_p5: float = percentile(10)
    window: int = count(500)
    patience: int = count(1000)


class _LowUse(Judge):
    def __init__(self, parameters: LowGPUUtilizationParameters) -> None:
        self.parameters = parameters
        self.needed = max(parameters.patience, parameters.window)
        self.look_back = parameters.window

    def judge(self, before: dict[str, int], tails: Chunk, new: Chunk) -> tuple[int, dict[str, Any]]:
        if before[VALUES] + len(new[VALUES]) <= self.parameters.patience:
            return 0, {}
        found = _percentiles(tails[VALUES][-self.parameters.window :])
        return (1, found) if _is_low(found, self.parameters) else (0, {})


def _is_low(found: dict[str, float], limits: LowGPUUtilizationParameters) -> bool:
    """Under-used, or mostly well used and idle at times."""
    high, low = found["gpu_95"], found["gpu_5"]
    return high < limits.threshold_p95 or (high > limits.threshold_p95 and low < limits.threshold_p5)


def _percentiles(last: Floats) -> dict[str, float]:
    """Maximum and percentiles of the last values."""
    return {
        "gpu_max": float(last.max()),
        "gpu_95": float(np.quantile(last, 0.95)),
        "gpu_5": float(np.quantile(last, 0.05)),
    }


class LowGPUUtilization(GpuRule):
    """Fires for a GPU whose 95th percentile of use is below `threshold_p95`, or whose 5th is below `threshold_p5` while the 95th is above."""

    description = "GPUs that are little used, or whose use swings between busy and idle."
    recommendation = "Look for bottlenecks, wait less often for the GPU (blocking calls), or use larger batches."
    Parameters = LowGPUUtilizationParameters
    Judge = _LowUse
    metric = GPU_USE

    def update_as_service(self, window: Window) -> None:
        """Take a window as the managed service does."""
        for node, gpu, values in per_gpu(window.system, GPU_USE):
            self._series.setdefault((node, gpu), Series()).add(values)
        for (node, gpu), series in self._series.items():
            self.datapoints = len(series)
            if len(series) <= self.parameters.patience:
                continue
            found = _percentiles(series.values[-self.parameters.window :])
            if _is_low(found, self.parameters):
                self.triggered += 1
                self.violations += 1
                self.details.setdefault(node, {})[gpu] = {**found, **whole_box(series.values)}
                self.details["last_timestamp"] = window.start_us

    def describe(self, found: dict[str, Any], spread: Spread) -> dict[str, Any]:
        """Percentiles of the last time, and the box plot of all values."""
        return {**found, **spread.box()}
