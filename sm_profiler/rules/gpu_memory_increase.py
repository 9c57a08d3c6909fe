"""GPUMemoryIncrease: steep increases of a GPU's memory use."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sm_profiler.rules.differences import Differences
from sm_profiler.rules.gpu_rule import SEEN, VALUES, GpuRule
from sm_profiler.rules.grouping import GPU_MEMORY
from sm_profiler.rules.parameters import count, length, positive
from sm_profiler.rules.quantile_sketch import QuantileSketch
from sm_profiler.rules.rolling_series import Chunk, RollingCondition


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
