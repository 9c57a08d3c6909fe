"""BatchSize: CPU, GPU and GPU memory are all underutilized."""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.folding.window import EvaluationWindow
from sm_profiler.formats.columns import Floats, SystemColumns
from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.gpu_rule import DeviceDetails, ServiceDeviceDetails
from sm_profiler.rules.grouping import (
    CPU_UTILIZATION,
    GPU_MEMORY,
    GPU_UTILIZATION,
    gpu_data_missing,
    names_by_node,
    natural_key,
    sums_per_moment,
    values_per_gpu,
)
from sm_profiler.rules.parameters import count, length, percentile
from sm_profiler.rules.quantile_sketch import Box
from sm_profiler.rules.results import RuleResult
from sm_profiler.rules.rolling_series import Chunk, GrowingArray, RollingCondition, RollingSeries, merge_series

CPU, MEMORY = "cpu", "_memory"


@attrs.frozen
class BatchSizeParameters:
    """Percentages; window and patience count data points."""

    cpu_threshold_p95: float = percentile(70)
    gpu_threshold_p95: float = percentile(70)
    gpu_memory_threshold_p95: float = percentile(70)
    patience: int = count(1000)
    window: int = length(500)


class _Underutilized(RollingCondition):
    """A node's CPU is underutilized, as are a GPU and its memory; the evidence is a list of GPUs."""

    def __init__(self, parameters: BatchSizeParameters) -> None:
        self.parameters = parameters
        self.needed = max(parameters.patience, parameters.window) + 1
        self.look_back = parameters.window

    def check(self, before: dict[str, int], tails: Chunk, new: Chunk) -> tuple[int, list[str]]:
        gpus = underutilized_gpus({name: before[name] + len(new[name]) for name in new}, tails, self.parameters)
        return len(gpus), gpus


def underutilized_gpus(lengths: dict[str, int], last: Chunk, limits: BatchSizeParameters) -> list[str]:
    """Return the GPUs of a node that are underutilized together with their memory and the node's CPU.

    Args:
        lengths: number of values of each name so far.
        last: at least the last `window` of them.
        limits: the rule's parameters.
    """
    size = limits.window

    def high(name: str) -> float:
        return float(np.quantile(last[name][-size:], 0.95))

    if lengths.get(CPU, 0) <= max(size, limits.patience) or high(CPU) >= limits.cpu_threshold_p95:
        return []
    gpus = [name for name in lengths if name != CPU and not name.endswith(MEMORY) and lengths[name] > size]
    gpus = [gpu for gpu in gpus if len(last.get(gpu + MEMORY, ()))]
    return [
        gpu
        for gpu in gpus
        if high(gpu) < limits.gpu_threshold_p95 and high(gpu + MEMORY) < limits.gpu_memory_threshold_p95
    ]


def node_values(system: SystemColumns, cores: dict[str, set[str]]) -> dict[str, dict[str, Floats]]:
    """Return the values of a window by node and name: mean CPU utilization, and use and memory of each GPU.

    Args:
        system: rows of the window.
        cores: names of the cores by node.
    """
    values: dict[str, dict[str, Floats]] = {}
    for node, sums in sums_per_moment(system, system.dimension.mask(CPU_UTILIZATION)):
        values.setdefault(node, {})[CPU] = sums / len(cores[node])
    for dimension, suffix in ((GPU_UTILIZATION, ""), (GPU_MEMORY, MEMORY)):
        for node, gpu, of_gpu in values_per_gpu(system, dimension):
            values.setdefault(node, {})[gpu + suffix] = of_gpu
    return values


def core_names(system: SystemColumns) -> dict[str, set[str]]:
    """Return the names of the cores in a window, by node."""
    return names_by_node(system, system.dimension.mask(CPU_UTILIZATION))


class BatchSize(BuiltinRule):
    """Fires for each GPU that is underutilized, as are its memory and its node's CPU (95th percentiles of the last values)."""

    Parameters = BatchSizeParameters

    def start(self) -> None:
        """Set up the state of the fold."""
        self._condition = _Underutilized(self.parameters)
        self._cores: dict[str, set[str]] = {}
        self._series: dict[str, RollingSeries] = {}  # by node
        self._saw_gpu = self._has_hits = False

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Append the window's values of each node; return True if the condition has been met."""
        self._add_cores(core_names(window.new_system))
        for node, chunk in node_values(window.new_system, self._cores).items():
            self._saw_gpu = self._saw_gpu or set(chunk) != {CPU}
            series = self._series.setdefault(node, RollingSeries(self._condition))
            self._has_hits = bool(series.feed(window.start_us, chunk)) or self._has_hits
        return self._has_hits

    def _add_cores(self, cores: dict[str, set[str]]) -> None:
        for node, names in cores.items():
            self._cores.setdefault(node, set()).update(names)

    def absorb(self, other: BatchSize) -> None:
        """Add the state of another part of the job."""
        merge_series(self._series, other._series)
        self._has_hits = any(series.hits for series in self._series.values())
        self._add_cores(other._cores)
        self._saw_gpu = self._saw_gpu or other._saw_gpu

    def result(self) -> RuleResult:
        """Return the hits of all nodes."""
        all_series = sorted(self._series.items(), key=lambda item: natural_key(item[0]))
        nodes: dict[str, dict[str, dict[str, float]]] = {}
        for node, series in all_series:
            if series.last_hit:
                gpus = sorted(series.last_hit[1], key=natural_key)
                names = [CPU, *(name for gpu in gpus for name in (gpu, gpu + MEMORY))]
                nodes[node] = {name: series.sketch(name).box().as_dict() for name in names}
        last_hits = [series.last_hit[0] for _, series in all_series if series.last_hit]
        hits = sum(series.hits for _, series in all_series)
        datapoints = max((series.count(CPU) for _, series in all_series), default=0)
        patience = max(self.parameters.patience, self.parameters.window)
        missing = gpu_data_missing(datapoints if self._saw_gpu else 0, patience)
        return self._result(hits, hits, datapoints, DeviceDetails(nodes, max(last_hits, default=None)), missing)


# --- compat="service" ------------------------------------------------------------------------------------------------


class ServiceBatchSize(BatchSize, service_of=BatchSize):
    """BatchSize as the service computed it.

    Cores are counted across nodes, `last_timestamp` is the job's first minute, and the whiskers of a GPU's memory use
    the lower quartile of its utilization.
    """

    def start(self) -> None:
        """Set up the state of the fold."""
        self._names: set[str] = set()  # of cores
        self._values: dict[str, dict[str, GrowingArray]] = {}
        self._nodes: dict[str, dict[str, dict[str, float]]] = {}
        self._hits = self._datapoints = 0
        self._first_us: int | None = None

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Append the window's values of each node; return True if the condition has been met."""
        self._first_us = window.start_us if self._first_us is None else self._first_us
        cores = core_names(window.system)
        self._names.update(*cores.values())
        for node, chunk in node_values(window.system, dict.fromkeys(cores, self._names)).items():
            for name, values in chunk.items():
                self._values.setdefault(node, {}).setdefault(name, GrowingArray()).add(values)
        for node, arrays in self._values.items():
            if CPU not in arrays:
                continue
            self._datapoints = len(arrays[CPU])
            latest = {name: array.values for name, array in arrays.items()}
            for gpu in underutilized_gpus({name: len(one) for name, one in latest.items()}, latest, self.parameters):
                self._hits += 1
                memory = Box.of_values(latest[gpu + MEMORY], float(np.quantile(latest[gpu], 0.25)))
                self._nodes.setdefault(node, {}).update(
                    {
                        CPU: Box.of_values(latest[CPU]).as_dict(),
                        gpu: Box.of_values(latest[gpu]).as_dict(),
                        gpu + MEMORY: memory.as_dict(),
                    }
                )
        return self._hits > 0

    def result(self) -> RuleResult:
        """Return the service's numbers."""
        nodes = {node: dict(devices) for node, devices in self._nodes.items()}
        details = ServiceDeviceDetails(nodes, self._first_us if nodes else None)
        return self._result(self._hits, self._hits, self._datapoints, details)
