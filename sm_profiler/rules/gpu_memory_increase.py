"""GPUMemoryIncrease: steep increases of a GPU's memory use."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sm_profiler.folding.window import EvaluationWindow
from sm_profiler.formats.columns import Floats, Ints
from sm_profiler.rules.gpu_rule import VALUES, GpuRule, ServiceGpuRule
from sm_profiler.rules.grouping import GPU_MEMORY, values_per_gpu
from sm_profiler.rules.parameters import count, length, positive
from sm_profiler.rules.quantile_sketch import Box, QuantileSketch
from sm_profiler.rules.rolling_series import Chunk, GrowingArray, RollingCondition


@attrs.frozen
class GPUMemoryIncreaseParameters:
    """`increase` in percentage points; window and patience count the values of one GPU."""

    increase: float = positive(5)
    patience: int = count(1000)
    window: int = length(10)


class _Increase(RollingCondition):
    """The mean of the last `window` values is more than `increase` above that of the `window` values before."""

    def __init__(self, parameters: GPUMemoryIncreaseParameters) -> None:
        self.parameters = parameters
        self.needed = max(parameters.patience + 1, 2 * parameters.window)
        self.look_back = 2 * parameters.window - 1

    def check(self, before: dict[str, int], tails: Chunk, new: Chunk) -> tuple[int, dict[str, float]]:
        size = self.parameters.window
        values = tails[VALUES]
        if len(values) < 2 * size:
            return 0, {}
        means = sliding_window_view(values, size).mean(axis=-1)
        rise = means[size:] - means[:-size]  # one for each value from the (2 * size)-th on
        rise = rise[-len(new[VALUES]) :]
        positions = before[VALUES] + len(new[VALUES]) - np.arange(len(rise) - 1, -1, -1)
        hits = rise[(rise > self.parameters.increase) & (positions > self.parameters.patience)]
        return len(hits), {"increase": float(hits[-1])} if len(hits) else {}


class GPUMemoryIncrease(GpuRule):
    """Fires at each value whose `window` last ones are on average more than `increase` points above the `window` before."""

    Parameters = GPUMemoryIncreaseParameters
    Condition = _Increase
    metric = GPU_MEMORY

    def describe(self, evidence: dict[str, float], values: QuantileSketch) -> dict[str, float]:
        """Return the last increase and the box plot of all values."""
        (p05,) = values.quantiles([0.05])
        return {**evidence, "gpu_max": values.max, "p05": p05, **values.box().as_dict()}


# --- compat="service" ------------------------------------------------------------------------------------------------


class ServiceGPUMemoryIncrease(ServiceGpuRule, GPUMemoryIncrease, service_of=GPUMemoryIncrease):
    """GPUMemoryIncrease as the service computed it: against the `window - 1` values `[-window - 1 : -2]`."""

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Append the window's values of each GPU; return True if the condition has been met."""
        for node, gpu, values in values_per_gpu(window.system, self.metric):
            series = self._values.setdefault((node, gpu), GrowingArray())
            before = len(series)
            series.add(values)
            self._datapoints = len(series)
            lengths, rises = self._increases(series.values, before)
            if len(lengths):
                so_far = series.values[: lengths[-1]]
                box = {"p05": float(np.quantile(so_far, 0.05)), **Box.of_values(so_far).as_dict()}
                found = {"increase": float(rises[-1]), "gpu_max": float(so_far.max()), **box}
                self._hit(node, gpu, len(lengths), found, window)
        return self._hits > 0

    def _increases(self, values: Floats, before: int) -> tuple[Ints, Floats]:
        """Return the number of values seen at each hit, and its increase."""
        size, first = self.parameters.window, max(self.parameters.patience, self.parameters.window + 1, before) + 1
        if len(values) < first or size <= 1:  # [-2:-2] and [-1:-2] are empty, and their means not numbers
            return np.empty(0, np.int64), np.empty(0)
        lengths = np.arange(first, len(values) + 1)
        last = sliding_window_view(values, size)[lengths - size].mean(axis=-1)
        earlier = sliding_window_view(values, size - 1)[lengths - size - 1].mean(axis=-1)
        rises = last - earlier
        hits = rises > self.parameters.increase
        return lengths[hits], rises[hits]
