"""Copies between host and device, and within a device."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sm_profiler.analysis.gpu.kernels import copy_direction, is_pageable
from sm_profiler.formats.kineto_reader import MEMCPY, MEMSET, KinetoColumns


def memory_bandwidth(events: KinetoColumns) -> pd.DataFrame:
    """Return the copies by direction.

    Returns:
        Columns direction (`Memcpy HtoD`, `Memset`, …), pageable, count, bytes, sum_us, gbps (bytes through time, 10⁹ bytes a
        second), mean_gbps, min_gbps, median_gbps and max_gbps (of single copies). A copy of unknown size has none.
    """
    chosen = events[np.isin(events.category, (MEMCPY, MEMSET)) & events.on_device]
    names = chosen.name.values
    direction = np.array([copy_direction(name) for name in names] or [""], object)[chosen.name.codes]
    pageable = np.array([is_pageable(name) for name in names] or [False])[chosen.name.codes]
    size = np.where(chosen.bytes >= 0, chosen.bytes, np.nan).astype(float)
    # old traces round to microseconds; a copy took some of one
    rate = size / np.maximum(chosen.duration_us, 1e-3 if np.any(chosen.duration_us % 1) else 1.0) / 1e3
    frame = pd.DataFrame({
        "direction": direction, "pageable": pageable, "bytes": size, "us": chosen.duration_us, "rate": rate,
    })  # fmt: skip
    grouped = frame.groupby(["direction", "pageable"])
    result = grouped.agg(
        count=("us", "size"), bytes=("bytes", "sum"), sum_us=("us", "sum"), mean_gbps=("rate", "mean"),
        min_gbps=("rate", "min"), median_gbps=("rate", "median"), max_gbps=("rate", "max"),
    ).reset_index()  # fmt: skip
    with np.errstate(divide="ignore", invalid="ignore"):
        overall = np.where(result["sum_us"] > 0, result["bytes"] / result["sum_us"] / 1e3, np.nan)
    result.insert(5, "gbps", overall)
    return result
