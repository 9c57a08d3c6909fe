"""GPU metrics of a window, per node and GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sm_profiler.formats.columns import Floats, SystemColumns

GPU_USE, GPU_MEMORY = "GPUUtilization", "GPUMemoryUtilization"


def per_gpu(system: SystemColumns, dimension: str) -> Iterator[tuple[str, str, Floats]]:
    """Yield (node, GPU, values in the order of the rows), pairs in order of first appearance; odd values left out."""
    rows = np.flatnonzero(system.dimension.mask(dimension) & np.isfinite(system.value))
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


def why_not(datapoints: int, patience: int) -> str | None:
    """Why GPUs could not be judged, if so."""
    if datapoints == 0:
        return "no GPU metrics"
    return f"{datapoints} data points per GPU, patience is {patience}" if datapoints <= patience else None
