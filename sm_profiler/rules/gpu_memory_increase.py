"""GPUMemoryIncrease: a GPU's memory use jumps."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sm_profiler.formats.columns import Floats, Ints
from sm_profiler.rules.gpu_rule import VALUES, GpuRule
from sm_profiler.rules.gpus import GPU_MEMORY, per_gpu
from sm_profiler.rules.parameters import count, positive
from sm_profiler.rules.quantile_sketch import Series, Spread, whole_box
from sm_profiler.rules.rolling_series import Chunk, Judge
from sm_profiler.rules.window import Window


@attrs.frozen
class GPUMemoryIncreaseParameters:
    """`increase` in percentage points; window and patience count the values of one GPU."""

    increase: float = positive(5)
    patience: int = count(1000)
    window: int = count(10)


class _Jump(Judge):
    """A jump: the mean of the last values is more than `increase` above the mean of as many before them."""

    def __init__(self, parameters: GPUMemoryIncreaseParameters) -> None:
        self.parameters = parameters
        self.needed = max(parameters.patience + 1, 2 * parameters.window)
        self.look_back = 2 * parameters.window - 1

    def judge(self, before: dict[str, int], tails: Chunk, new: Chunk) -> tuple[int, dict[str, Any]]:
        size = self.parameters.window
        values = tails[VALUES]
        if len(values) < 2 * size:
            return 0, {}
        means = sliding_window_view(values, size).mean(axis=-1)
        rise = means[size:] - means[:-size]  # one for each value from the (2 * size)-th on
        rise = rise[-len(new[VALUES]) :]
        positions = before[VALUES] + len(new[VALUES]) - np.arange(len(rise) - 1, -1, -1)
        jumps = rise[(rise > self.parameters.increase) & (positions > self.parameters.patience)]
        return len(jumps), {"increase": float(jumps[-1])} if len(jumps) else {}


class GPUMemoryIncrease(GpuRule):
    """Fires at each value whose `window` last ones lie on average more than `increase` points above the ones before."""

    description = "Steep increases of a GPU's memory use."
    recommendation = (
        "If memory use comes close to the limit, use an instance with more GPU memory; else look for what grows."
    )
    Parameters = GPUMemoryIncreaseParameters
    Judge = _Jump
    metric = GPU_MEMORY

    def update_as_service(self, window: Window) -> None:
        """Take a window as the managed service does."""
        for node, gpu, values in per_gpu(window.system, GPU_MEMORY):
            series = self._series.setdefault((node, gpu), Series())
            before = len(series)
            series.add(values)
            self.datapoints = len(series)
            hits, rises = self._service_jumps(series.values, before)
            if len(hits) == 0:
                continue
            self.triggered += len(hits)
            self.violations += len(hits)
            so_far = series.values[: hits[-1]]
            spread = {"p05": float(np.quantile(so_far, 0.05)), **whole_box(so_far)}
            found = {"increase": float(rises[-1]), "gpu_max": float(so_far.max()), **spread}
            self.details.setdefault(node, {})[gpu] = found
            self.details["last_timestamp"] = window.start_us

    def _service_jumps(self, values: Floats, before: int) -> tuple[Ints, Floats]:
        """How many values had come at each jump, and its height."""
        size, first = self.parameters.window, max(self.parameters.patience, self.parameters.window + 1, before) + 1
        if len(values) < first:
            return np.empty(0, np.int64), np.empty(0)
        lengths = np.arange(first, len(values) + 1)
        last = sliding_window_view(values, size)[lengths - size].mean(axis=-1)
        if size == 1:  # the slice [-2:-2] is empty, and its mean is not a number
            return np.empty(0, np.int64), np.empty(0)
        earlier = sliding_window_view(values, size - 1)[lengths - size - 1].mean(axis=-1)
        rises = last - earlier
        jumps = rises > self.parameters.increase
        return lengths[jumps], rises[jumps]

    def describe(self, found: dict[str, Any], spread: Spread) -> dict[str, Any]:
        """The last jump, and the box plot of all values."""
        return {**found, "gpu_max": spread.max, "p05": spread.quantiles([0.05])[0], **spread.box()}
