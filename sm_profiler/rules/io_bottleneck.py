"""IOBottleneck: GPUs wait while CPU cores wait for disk or network."""

from __future__ import annotations

import attrs

from sm_profiler.rules.bottleneck import Bottleneck
from sm_profiler.rules.parameters import count, percentile


@attrs.frozen
class IOBottleneckParameters:
    """Percentages, and the number of data points before which nothing is judged."""

    threshold: float = percentile(50)
    io_threshold: float = percentile(50)
    gpu_threshold: float = percentile(10)
    patience: int = count(1000)


class IOBottleneck(Bottleneck):
    """Fires when in more than `threshold` % of the data points a GPU is below `gpu_threshold` % while a core waits for I/O more than `io_threshold` % of its time."""

    description = "Moments at which GPUs wait while CPU cores wait for input or output: storage is the limit."
    recommendation = "Prefetch data, use binary formats that are read in large pieces, or bring the storage closer."
    Parameters = IOBottleneckParameters
    dimension = "I/OWaitPercentage"

    def hot_threshold(self) -> float:
        """Above it a core counts as waiting."""
        limit: float = self.parameters.io_threshold
        return limit
