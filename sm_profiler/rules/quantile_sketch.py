"""Quantiles of all values of a metric in bounded memory, independent of the order of arrival."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Floats, Ints

LIMIT = 32_768  # distinct values kept exactly; beyond that the least significant bits of all values are dropped
MANTISSA_BITS = 52
LEAST_PENDING = 512  # values kept as they came; more if as many are distinct: a sort of both pays then
Counted = tuple[Floats, NDArray[np.integer[Any]]]  # distinct values in ascending order, and how often each occurred


class QuantileSketch:
    """A mergeable multiset of numbers with exact counts and quantiles.

    Up to LIMIT distinct values the quantiles are exact. Beyond that, all values lose as many low bits as needed (with
    32,768 values, a day of samples keeps a relative error below 0.01 %). The result does not depend on the order of
    additions and merges. With `exact`, every value is kept.
    """

    def __init__(self, *, exact: bool = False) -> None:
        self.limit = None if exact else LIMIT
        self.count = 0
        self._dropped_bits = 0
        self._values: Floats = np.empty(0)
        self._counts: NDArray[np.integer[Any]] = np.empty(0, np.uint8)  # as few bytes as they need
        self._pending: list[Floats] = []
        self._pending_count = 0

    def __deepcopy__(self, _: dict[int, Any]) -> QuantileSketch:
        """Return a sketch that shares the arrays, which never change: a live report copies thousands of sketches."""
        made = copy(self)
        vars(made)["_pending"] = list(self._pending)
        return made

    def add(self, values: Floats) -> None:
        """Add finite values, shape (n,), which stay as they are."""
        if len(values) == 0:
            return
        self.count += len(values)
        self._pending.append(values)
        self._pending_count += len(values)
        if self.limit is not None and self._pending_count > max(LEAST_PENDING, len(self._values)):
            self._compact()

    def merge(self, other: QuantileSketch) -> None:
        other._compact()
        self._compact()
        self._absorb(other._values, other._counts, other._dropped_bits)
        self.count += other.count

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return quantiles, interpolated linearly as numpy.quantile does; the sketch must not be empty."""
        self._compact()
        ends = np.cumsum(self._counts, dtype=np.int64)
        found = []
        for share in shares:
            place = (self.count - 1) * share
            low = int(place)
            below = float(self._values[np.searchsorted(ends, low, side="right")])
            above = float(self._values[np.searchsorted(ends, min(low + 1, self.count - 1), side="right")])
            found.append(below + (above - below) * (place - low))
        return found

    def box(self, lower_quartile: float | None = None) -> dict[str, float]:
        """Return the box plot of all values: quartiles, 95th percentile, whiskers at 1.5 times the interquartile range.

        Args:
            lower_quartile: 25th percentile that the length of the whiskers is computed from; default: its own.
        """
        p25, p50, p75, p95 = self.quantiles((0.25, 0.5, 0.75, 0.95))
        whisker = 1.5 * (p75 - (p25 if lower_quartile is None else lower_quartile))
        upper, lower = min(p75 + whisker, self.max), max(p25 - whisker, self.min)
        return {"p25": p25, "p50": p50, "p75": p75, "p95": p95, "upper": upper, "lower": lower}

    @property
    def min(self) -> float:
        self._compact()
        return float(self._values[0])

    @property
    def max(self) -> float:
        self._compact()
        return float(self._values[-1])

    def values_and_counts(self) -> tuple[Floats, Ints]:
        """Return the distinct values in ascending order, and how often each occurred."""
        self._compact()
        return self._values, self._counts.astype(np.int64)

    def _compact(self) -> None:
        if self._pending:
            pending, self._pending, self._pending_count = np.concatenate(self._pending), [], 0
            self._absorb(*np.unique(pending, return_counts=True), 0)

    def _absorb(self, values: Floats, counts: NDArray[np.integer[Any]], dropped_bits: int) -> None:
        """Add distinct values in ascending order."""
        bits = max(self._dropped_bits, dropped_bits)
        mine, theirs = (self._values, self._counts), (values, counts)
        if bits > self._dropped_bits:
            mine = _grouped(_without_low_bits(self._values, bits), self._counts)
        if bits > dropped_bits:
            theirs = _grouped(_without_low_bits(values, bits), counts)
        self._values, self._counts = _united(mine, theirs)
        while self.limit is not None and len(self._values) > self.limit and bits < MANTISSA_BITS:
            bits += 1
            self._values, self._counts = _grouped(_without_low_bits(self._values, bits), self._counts)
        self._dropped_bits = bits
        if len(self._counts):  # many sketches wait to be merged
            self._counts = self._counts.astype(np.min_scalar_type(int(self._counts.max())))


def histogram(values: Floats, bins: int, weights: Ints | None = None) -> tuple[Ints, Floats]:
    """Count values in bins of equal width; return the counts, shape (bins,), and the edges, shape (bins + 1,)."""
    try:
        counts, edges = np.histogram(values, bins=bins, weights=weights)
    except ValueError:  # values so close to each other that floats cannot split the range: as if they were equal
        ends = (float(values.min()) - 0.5, float(values.max()) + 0.5)
        counts, edges = np.histogram(values, bins=bins, weights=weights, range=ends)
    return counts.astype(np.int64), edges


def _without_low_bits(values: Floats, bits: int) -> Floats:
    """Clear the lowest `bits` bits of each mantissa: rounds towards zero, so that repeating it changes nothing."""
    if bits == 0:
        return values
    kept = np.int64(-1) << np.int64(bits)
    return (values.view(np.int64) & kept).view(np.float64)


def _united(one: Counted, other: Counted) -> Counted:
    """Return all distinct values of both in ascending order, without sorting them again."""
    (values, counts), (more, more_counts) = (one, other) if len(one[0]) >= len(other[0]) else (other, one)
    if not len(more):
        return values, counts
    at = np.searchsorted(values, more)
    known = values[np.minimum(at, len(values) - 1)] == more
    sums = counts.astype(np.int64)
    sums[at[known]] += more_counts[known]
    return np.insert(values, at[~known], more[~known]), np.insert(sums, at[~known], more_counts[~known])


def _grouped(values: Floats, counts: NDArray[np.integer[Any]]) -> tuple[Floats, Ints]:
    distinct, inverse = np.unique(values, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, inverse, counts)
    return distinct, sums
