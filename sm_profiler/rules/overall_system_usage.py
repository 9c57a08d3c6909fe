"""OverallSystemUsage: statistics of every resource, per node; it never fires."""

from __future__ import annotations

from typing import Any

import numpy as np

from sm_profiler.formats.columns import SystemColumns
from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.gpus import GPU_MEMORY, GPU_USE
from sm_profiler.rules.node_sums import sums_per_moment
from sm_profiler.rules.nodes import natural
from sm_profiler.rules.quantile_sketch import Spread
from sm_profiler.rules.window import Window

# What the report calls a metric → the dimension its rows have, and of which devices it is the mean.
METRICS = {
    "Network": ("Algorithm", None),
    "GPU": (GPU_USE, "gpu"),
    "CPU": ("CPUUtilization", "cpu"),
    "CPU memory": ("", None),
    "GPU memory": (GPU_MEMORY, "gpu"),
    "I/O": ("I/OWaitPercentage", "cpu"),
}
MEMORY_NAME = "MemoryUsedPercent"
SHARES = {"p99": 0.99, "p95": 0.95, "p50": 0.5}


class OverallSystemUsage(BuiltinRule):
    """Maximum, percentiles and minimum of network, GPU, CPU, memory and I/O wait of each node."""

    description = "How much of each node's CPU, GPU, memory, network and I/O the job uses."
    recommendation = (
        "Resources that stay far below their limits point to a smaller instance; those at the limit to what to relieve."
    )

    def start(self) -> None:
        """Nothing has been seen yet."""
        self._names: dict[tuple[str, str], set[str]] = {}  # device names by node and kind
        self._spreads: dict[str, dict[str, Spread]] = {metric: {} for metric in METRICS}

    def update(self, window: Window) -> bool:
        """Take the window's sums per node and moment."""
        if self.service and not window.looked_at_by_service:
            return False
        system = window.system if self.service else window.new_system
        self._learn_names(system)
        for metric, (dimension, devices) in METRICS.items():
            is_memory = metric == "CPU memory"
            chosen = system.name.mask(MEMORY_NAME) if is_memory else system.dimension.mask(dimension)
            for node, sums in sums_per_moment(system, chosen):
                divisor = len(self._names[self._scope(node), devices]) if devices else 1
                spread = self._spreads[metric].setdefault(node, Spread(exact=self.service))
                spread.add(sums / divisor)
        return False

    def _scope(self, node: str) -> str:
        """The service counts devices by name across nodes."""
        return "" if self.service else node

    def _learn_names(self, system: SystemColumns) -> None:
        for devices, dimensions in (("gpu", (GPU_USE, GPU_MEMORY)), ("cpu", ("CPUUtilization", "I/OWaitPercentage"))):
            rows = system.dimension.mask(dimensions[0]) | system.dimension.mask(dimensions[1])
            for node in system.node[rows].present():
                names = system.name[rows & system.node.mask(node)].present()
                self._names.setdefault((self._scope(node), devices), set()).update(names)

    def absorb(self, other: OverallSystemUsage) -> None:
        """Take in other nodes or other minutes of the same job."""
        for key, names in other._names.items():
            self._names.setdefault(key, set()).update(names)
        for metric, of_nodes in other._spreads.items():
            for node, spread in of_nodes.items():
                self._spreads[metric].setdefault(node, Spread()).merge(spread)

    def finish(self) -> None:
        """Write the statistics."""
        cpu = self._spreads["CPU"]
        if not self.service:
            for metric, of_nodes in self._spreads.items():
                self._spreads[metric] = dict(sorted(of_nodes.items(), key=lambda item: natural(item[0])))
            cpu = self._spreads["CPU"]
            self.not_evaluated("no system metrics" if not any(self._spreads.values()) else None)
        self.datapoints = next(iter(cpu.values())).count if cpu else 0
        why = {key: value for key, value in self.details.items() if key == "not_evaluated"}
        self.details = {
            metric: {node: statistics(spread) for node, spread in of_nodes.items()}
            for metric, of_nodes in self._spreads.items()
        }
        self.details.update(why)


def statistics(spread: Spread) -> dict[str, Any]:
    """Maximum, percentiles and minimum, to two decimals; what is not above zero is the int 0."""
    p99, p95, p50 = spread.quantiles(list(SHARES.values()))
    found = {"max": spread.max, "p99": p99, "p95": p95, "p50": p50, "min": spread.min}
    rounded = {name: float(np.round(value, 2)) for name, value in found.items()}
    return {name: max(0, value) for name, value in rounded.items()}
