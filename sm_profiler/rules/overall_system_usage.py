"""OverallSystemUsage: statistics of every resource per node; never fires."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from sm_profiler.folding.window import EvaluationWindow
from sm_profiler.formats.columns import SystemColumns
from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.grouping import (
    CPU_UTILIZATION,
    GPU_MEMORY,
    GPU_UTILIZATION,
    IO_WAIT,
    MEMORY_NAME,
    names_by_node,
    natural_key,
    sums_per_moment,
)
from sm_profiler.rules.quantile_sketch import QuantileSketch
from sm_profiler.rules.results import RuleResult

# Metric in the report → dimension of its rows, and the devices it is the mean of.
METRICS = {
    "Network": ("Algorithm", None),
    "GPU": (GPU_UTILIZATION, "gpu"),
    "CPU": (CPU_UTILIZATION, "cpu"),
    "CPU memory": ("", None),
    "GPU memory": (GPU_MEMORY, "gpu"),
    "I/O": (IO_WAIT, "cpu"),
}
DEVICES = {"gpu": (GPU_UTILIZATION, GPU_MEMORY), "cpu": (CPU_UTILIZATION, IO_WAIT)}


@attrs.frozen
class SystemUsageDetails:
    """Metric → node → statistics."""

    metrics: dict[str, dict[str, dict[str, float]]]

    def as_dict(self) -> dict[str, Any]:
        """Return the report's details."""
        return dict(self.metrics)


def statistics(values: QuantileSketch) -> dict[str, float]:
    """Return maximum, percentiles and minimum to two decimals; values of zero and below are the int 0."""
    p99, p95, p50 = values.quantiles([0.99, 0.95, 0.5])
    found = {"max": values.max, "p99": p99, "p95": p95, "p50": p50, "min": values.min}
    return {name: max(0, float(np.round(value, 2))) for name, value in found.items()}


class OverallSystemUsage(BuiltinRule):
    """Maximum, percentiles and minimum of network, GPU, CPU, memory and I/O wait of each node."""

    def start(self) -> None:
        """Set up the state of the fold."""
        self._device_names: dict[tuple[str, str], set[str]] = {}  # by node and kind
        self._values: dict[str, dict[str, QuantileSketch]] = {metric: {} for metric in METRICS}

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Add the window's sums per node and timestamp."""
        self._add(self.rows(window)[0])
        return False

    def _add(self, system: SystemColumns) -> None:
        for kind, dimensions in DEVICES.items():
            rows = system.dimension.mask(dimensions[0]) | system.dimension.mask(dimensions[1])
            for node, names in names_by_node(system, rows).items():
                self._names_of(node, kind).update(names)
        for metric, (dimension, devices) in METRICS.items():
            is_memory = metric == "CPU memory"
            chosen = system.name.mask(MEMORY_NAME) if is_memory else system.dimension.mask(dimension)
            for node, sums in sums_per_moment(system, chosen):
                divisor = len(self._names_of(node, devices)) if devices else 1
                self._values[metric].setdefault(node, QuantileSketch(exact=self.differs.all_values)).add(sums / divisor)

    def _names_of(self, node: str, kind: str) -> set[str]:
        return self._device_names.setdefault(("" if self.differs.across_nodes else node, kind), set())

    def absorb(self, other: OverallSystemUsage) -> None:
        """Add the state of another part of the job."""
        for (node, kind), names in other._device_names.items():
            self._names_of(node, kind).update(names)
        for metric, nodes in other._values.items():
            for node, values in nodes.items():
                self._values[metric].setdefault(node, QuantileSketch()).merge(values)

    def result(self) -> RuleResult:
        """Return the statistics, nodes in natural order."""
        metrics = self._values
        if not self.differs.as_it_went:
            metrics = {
                metric: dict(sorted(nodes.items(), key=lambda item: natural_key(item[0])))
                for metric, nodes in metrics.items()
            }
        cpu = next(iter(metrics["CPU"].values()), None)
        details = SystemUsageDetails(
            {metric: {node: statistics(values) for node, values in nodes.items()} for metric, nodes in metrics.items()}
        )
        missing = None if any(metrics.values()) else "no system metrics"
        return self._result(0, 0, cpu.count if cpu else 0, details, missing)
