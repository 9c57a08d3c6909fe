"""BatchSize: CPU, GPU and GPU memory are all underutilized."""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.folding.window import EvaluationWindow
from sm_profiler.formats.columns import Floats, SystemColumns
from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.gpu_rules import DeviceDetails
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
from sm_profiler.rules.results import RuleResult
from sm_profiler.rules.rolling_series import EVERYTHING, Chunk, RollingCondition, RollingSeries, merge_series

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
        self.look_back = parameters.window or EVERYTHING

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
        self._first_us: int | None = None
        self._nodes: dict[str, dict[str, dict[str, float]]] = {}  # as it went: described at the last hit of each GPU
        self._last = ""  # node that was evaluated last

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Append the window's values of each node; return True if the condition has been met."""
        self._first_us = window.start_us if self._first_us is None else self._first_us
        system, differs = self.rows(window)[0], self.differs
        present = core_names(system)
        self._add_cores(present)
        cores = dict.fromkeys(present, set().union(*self._cores.values())) if differs.across_nodes else self._cores
        values = node_values(system, cores)
        if differs.silent_gpus:
            values = {node: {**series.nothing(), **values.get(node, {})} for node, series in self._series.items()} | {
                node: chunk for node, chunk in values.items() if node not in self._series
            }
        for node, chunk in values.items():
            self._saw_gpu = self._saw_gpu or set(chunk) != {CPU}
            series = self._series.setdefault(node, RollingSeries(self._condition, exact=differs.all_values))
            hit = bool(series.feed(window.start_us, chunk))
            self._has_hits = self._has_hits or hit
            self._last = node if CPU in chunk else self._last
            if hit and differs.as_it_went and series.last_hit:
                self._nodes.setdefault(node, {}).update(self._boxes(series, series.last_hit[1]))
        return self._has_hits

    def _boxes(self, series: RollingSeries, gpus: list[str]) -> dict[str, dict[str, float]]:
        """Return the box plots of a node's CPU, and of the use and memory of some GPUs."""
        found = {CPU: series.sketch(CPU).box().as_dict()}
        for gpu in gpus:
            use = series.sketch(gpu)
            quartile = use.quantiles([0.25])[0] if self.differs.lent_quartile else None
            found[gpu] = use.box().as_dict()
            found[gpu + MEMORY] = series.sketch(gpu + MEMORY).box(quartile).as_dict()
        return found

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
        if self.differs.as_it_went:
            return self._result_as_it_went()
        all_series = sorted(self._series.items(), key=lambda item: natural_key(item[0]))
        nodes: dict[str, dict[str, dict[str, float]]] = {}
        for node, series in all_series:
            if series.last_hit:
                nodes[node] = self._boxes(series, sorted(series.last_hit[1], key=natural_key))
        last_hits = [series.last_hit[0] for _, series in all_series if series.last_hit]
        hits = sum(series.hits for _, series in all_series)
        datapoints = max((series.count(CPU) for _, series in all_series), default=0)
        patience = max(self.parameters.patience, self.parameters.window)
        missing = gpu_data_missing(datapoints if self._saw_gpu else 0, patience)
        return self._result(hits, hits, datapoints, DeviceDetails(nodes, max(last_hits, default=None)), missing)

    def _result_as_it_went(self) -> RuleResult:
        """Return the hits, with the data points of the node that was evaluated last."""
        hits = sum(series.hits for series in self._series.values())
        times = [series.last_hit[0] for series in self._series.values() if series.last_hit]
        time_us = self._first_us if self.differs.first_minute else max(times, default=None)
        nodes = {node: dict(devices) for node, devices in self._nodes.items()}
        datapoints = self._series[self._last].count(CPU) if self._last else 0
        return self._result(hits, hits, datapoints, DeviceDetails(nodes, time_us if nodes else None, second=True))
