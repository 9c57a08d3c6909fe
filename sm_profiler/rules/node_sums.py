"""Metrics of a whole node at each moment: sums over its cores or GPUs, from rows that share a timestamp."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sm_profiler.formats.columns import Floats, Ints, Mask, SystemColumns


def sums_per_moment(system: SystemColumns, chosen: Mask) -> Iterator[tuple[str, Floats]]:
    """Yield (node, sum of the chosen rows at each moment); nodes and moments in order of first appearance."""
    rows = np.flatnonzero(chosen & np.isfinite(system.value))
    nodes = system.node.codes[rows]
    for node in _in_order(nodes):
        own = rows[nodes == node]
        times = system.timestamp[own]
        if (np.diff(times) >= 0).all():
            points = np.cumsum(np.diff(times, prepend=times[0]) != 0)
            yield system.node.values[node], np.bincount(points, system.value[own]).astype(np.float64)
        else:
            _, first, inverse = np.unique(times, return_index=True, return_inverse=True)
            sums = np.bincount(inverse, system.value[own]).astype(np.float64)
            yield system.node.values[node], sums[np.argsort(first)]


def _in_order(codes: Ints | np.ndarray[tuple[int], np.dtype[np.int32]]) -> list[int]:
    distinct, first = np.unique(codes, return_index=True)
    return [int(code) for code in distinct[np.argsort(first)]]
