"""Long series, shortened to what a tool can show."""

from __future__ import annotations

import numpy as np

from sm_profiler.formats.columns import Floats, Ints


def group_length(count: int, points: int) -> int:
    """Return how many values become one, so that at most `points` are left."""
    return max(-(-count // max(points, 1)), 1)


def group_means(values: Floats, points: int) -> tuple[Ints, Floats]:
    """Return the means of equal groups of values, the last one of what is left, and the index of each group's first value.

    Args:
        values: the series; shape (n,).
        points: the most groups.
    """
    starts = np.arange(0, len(values), group_length(len(values), points))
    if not len(starts):
        return starts, np.zeros(0)
    return starts, np.add.reduceat(values, starts) / np.diff(np.append(starts, len(values)))
