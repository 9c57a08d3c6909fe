"""CPUBottleneck: GPUs wait while CPU cores are busy."""

from __future__ import annotations

import attrs

from sm_profiler.rules.bottleneck import Bottleneck
from sm_profiler.rules.parameters import count, percentile


@attrs.frozen
class CPUBottleneckParameters:
    """Percentages, and the number of data points before which nothing is judged."""

    threshold: float = percentile(50)
    cpu_threshold: float = percentile(90)
    gpu_threshold: float = percentile(10)
    patience: int = count(1000)


class CPUBottleneck(Bottleneck):
    """Fires when in more than `threshold` % of the data points a GPU is below `gpu_threshold` % while a core is above `cpu_threshold` %."""

    description = "Moments at which GPUs wait while CPU cores are busy: the data does not come fast enough."
    recommendation = (
        "Use more data loader workers or prefetch more batches, and move heavy preprocessing out of the loop."
    )
    Parameters = CPUBottleneckParameters
    dimension = "CPUUtilization"

    def hot_threshold(self) -> float:
        """Above it a core counts as busy."""
        limit: float = self.parameters.cpu_threshold
        return limit
