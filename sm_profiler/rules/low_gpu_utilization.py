"""LowGPUUtilization: GPUs that are underutilized, or used in bursts."""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.rules.differences import Differences
from sm_profiler.rules.gpu_rule import VALUES, GpuRule
from sm_profiler.rules.grouping import GPU_UTILIZATION
from sm_profiler.rules.parameters import count, length, percentile
from sm_profiler.rules.quantile_sketch import QuantileSketch
from sm_profiler.rules.rolling_series import EVERYTHING, Chunk, RollingCondition


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
