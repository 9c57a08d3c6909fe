"""Copies between host and device, and within a device."""

from __future__ import annotations

import numpy as np

from sm_profiler.analysis.gpu.kernels import copy_direction, is_pageable
from sm_profiler.analysis.gpu.table import Groups, Table, array_of
from sm_profiler.formats.kineto_reader import MEMCPY, MEMSET, KinetoColumns


def memory_bandwidth(events: KinetoColumns) -> Table:
    """Return the copies by direction.

    Returns:
        Columns direction (`Memcpy HtoD`, `Memset`, …), pageable, count, bytes, sum_us, gbps (bytes through time, 10⁹ bytes a
        second), mean_gbps, min_gbps, median_gbps and max_gbps (of single copies). A copy of unknown size has none.
    """
    chosen = events[np.isin(events.category, (MEMCPY, MEMSET)) & events.on_device]
    names = chosen.name.values
    directions = sorted({copy_direction(name) for name in names})
    number = np.array([directions.index(copy_direction(name)) for name in names] or [0])[chosen.name.codes]
    pageable = np.array([is_pageable(name) for name in names] or [False])[chosen.name.codes]
    size = np.where(chosen.bytes >= 0, chosen.bytes, np.nan).astype(float)
    # old traces round to microseconds; a copy took some of one
    rate = size / np.maximum(chosen.duration_us, 1e-3 if np.any(chosen.duration_us % 1) else 1.0) / 1e3
    groups = Groups(number, pageable)
    total, moved = groups.sum(chosen.duration_us), groups.sum(size)
    with np.errstate(divide="ignore", invalid="ignore"):
        overall = np.where(total > 0, moved / total / 1e3, np.nan)
    return Table({
        "direction": array_of([directions[one] for one in groups.first(number).tolist()]),
        "pageable": groups.first(pageable), "count": groups.count, "bytes": moved, "sum_us": total, "gbps": overall,
        "mean_gbps": groups.mean(rate), "min_gbps": groups.min(rate), "median_gbps": groups.median(rate),
        "max_gbps": groups.max(rate),
    })  # fmt: skip
