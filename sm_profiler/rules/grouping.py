"""Grouping of rows by node and GPU, and the names of nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from sm_profiler.formats.columns import Category, Floats, Ints, Mask, SystemColumns

CPU_UTILIZATION, IO_WAIT = "CPUUtilization", "I/OWaitPercentage"
GPU_UTILIZATION, GPU_MEMORY = "GPUUtilization", "GPUMemoryUtilization"
MEMORY_NAME = "MemoryUsedPercent"  # name of rows that have no dimension
MAX_VALUE = 1e15  # of a metric; larger ones are damaged, and sums of them would overflow
_NODE = re.compile(r"(algo-\d+)(?:-|$)", re.ASCII)


def values_per_gpu(system: SystemColumns, dimension: str) -> Iterator[tuple[str, str, Floats]]:
    """Yield (node, GPU, plausible values in the order of the rows); pairs in order of first appearance."""
    rows = np.flatnonzero(system.dimension.mask(dimension) & _is_plausible(system.value))
    if len(rows) == 0:
        return
    width = len(system.name.values)
    keys = system.node.codes[rows].astype(np.int64) * width + system.name.codes[rows]
    distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    parts = np.split(system.value[rows][order], np.cumsum(np.bincount(inverse))[:-1])
    for index in np.argsort(first):
        node, name = divmod(int(distinct[index]), width)
        yield system.node.values[node], system.name.values[name], parts[index]


def sums_per_moment(system: SystemColumns, chosen: Mask) -> Iterator[tuple[str, Floats]]:
    """Yield (node, sum of the chosen rows at each timestamp); nodes and timestamps in order of first appearance."""
    for node, own in system.node.groups(chosen & _is_plausible(system.value)):
        times = system.timestamp[own]
        if (np.diff(times) >= 0).all():
            points = np.cumsum(np.diff(times, prepend=times[0]) != 0)
            yield node, np.bincount(points, system.value[own]).astype(np.float64)
        else:
            _, first_at, inverse = np.unique(times, return_index=True, return_inverse=True)
            sums = np.bincount(inverse, system.value[own]).astype(np.float64)
            yield node, sums[np.argsort(first_at)]


def names_by_node(system: SystemColumns, chosen: Mask) -> dict[str, set[str]]:
    """Return node → the names of its chosen rows; every node of the rows has an entry."""
    found: dict[str, set[str]] = {node: set() for node in system.node.present()}
    for node, rows in system.node.groups(chosen):
        found[node].update(system.name[rows].present())
    return found


def _is_plausible(values: Floats) -> Mask:
    plausible: Mask = np.abs(values) <= MAX_VALUE  # False for NaN
    return plausible


def gpu_data_missing(datapoints: int, patience: int) -> str | None:
    """Return why a rule about GPUs cannot be evaluated, or None if it can."""
    if datapoints == 0:
        return "no GPU metrics"
    return f"{datapoints} data points per GPU, patience is {patience}" if datapoints <= patience else None


def node_of(process: str) -> str:
    """Return the node of a process: algo-1 for algo-1-0; a host name without the number of the process."""
    match = _NODE.match(process)
    return match[1] if match else re.sub(r"^\d+-|-\d+$", "", process)


def is_numbered(node: str) -> bool:
    """Return whether a node has the form of SageMaker's names, as the names of its processes then have."""
    return _NODE.match(node) is not None


def node_groups(processes: Category) -> dict[str, Ints]:
    """Return node → the numbers of its rows, for the column of the rows' processes."""
    names = [node_of(process) for process in processes.values]
    numbers = Category.of(names)
    return dict(Category(numbers.codes[processes.codes], numbers.values).groups()) if names else {}
