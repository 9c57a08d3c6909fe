"""How values are spread: quantiles over all of them, in bounded memory, whatever order they came in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sm_profiler.formats.columns import Floats, Ints

LIMIT = 32_768  # distinct values kept exactly; beyond that the least significant bits of all values go
MANTISSA_BITS = 52


class Spread:
    """A multiset of numbers that answers for quantiles and counts, and that another one can be merged into.

    Up to LIMIT distinct values the answers are exact.  Beyond, all values lose as many low bits as it takes (with
    32,768 a day of samples keeps a relative error below 0.01 %).  The outcome does not depend on the order
    of additions and merges.  With `exact` everything is kept.
    """

    def __init__(self, *, exact: bool = False) -> None:
        self.limit = None if exact else LIMIT
        self.count = 0
        self._dropped_bits = 0
        self._values: Floats = np.empty(0)
        self._counts: Ints = np.empty(0, np.int64)
        self._pending: list[Floats] = []
        self._pending_count = 0

    def add(self, values: Floats) -> None:
        """Add finite values."""
        if len(values) == 0:
            return
        self.count += len(values)
        self._pending.append(values)
        self._pending_count += len(values)
        if self.limit is not None and self._pending_count > self.limit:
            self._compact()

    def merge(self, other: Spread) -> None:
        """Add all values of another spread."""
        other._compact()
        self._compact()
        self._absorb(other._values, other._counts, other._dropped_bits)
        self.count += other.count

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Linear interpolation between the nearest values, as numpy.quantile does; the spread must not be empty."""
        self._compact()
        ends = np.cumsum(self._counts)
        found = []
        for share in shares:
            place = (self.count - 1) * share
            low = int(place)
            below = float(self._values[np.searchsorted(ends, low, side="right")])
            above = float(self._values[np.searchsorted(ends, min(low + 1, self.count - 1), side="right")])
            found.append(below + (above - below) * (place - low))
        return found

    def box(self) -> dict[str, float]:
        """What a box plot needs: quartiles, 95th percentile, whiskers at 1.5 times the interquartile range."""
        p25, p50, p75, p95 = self.quantiles((0.25, 0.5, 0.75, 0.95))
        return box((p25, p50, p75), p95, (self.min, self.max))

    @property
    def min(self) -> float:
        """The smallest value."""
        self._compact()
        return float(self._values[0])

    @property
    def max(self) -> float:
        """The largest value."""
        self._compact()
        return float(self._values[-1])

    def values_and_counts(self) -> tuple[Floats, Ints]:
        """The distinct values in ascending order, and how often each came."""
        self._compact()
        return self._values, self._counts

    def _compact(self) -> None:
        if self._pending:
            pending, self._pending, self._pending_count = np.concatenate(self._pending), [], 0
            self._absorb(*np.unique(pending, return_counts=True), 0)

    def _absorb(self, values: Floats, counts: Ints, dropped_bits: int) -> None:
        bits = max(self._dropped_bits, dropped_bits)
        together = _rounded(np.concatenate([self._values, values]), bits)
        weights = np.concatenate([self._counts, counts])
        self._values, self._counts = _grouped(together, weights)
        while self.limit is not None and len(self._values) > self.limit and bits < MANTISSA_BITS:
            bits += 1
            self._values, self._counts = _grouped(_rounded(self._values, bits), self._counts)
        self._dropped_bits = bits


def box(
    quartiles: tuple[float, float, float], p95: float, ends: tuple[float, float], reach: float | None = None
) -> dict[str, float]:
    """The report's form of a box plot.

    Args:
        quartiles: 25th, 50th and 75th percentile.
        p95: 95th percentile.
        ends: the smallest and the largest value.
        reach: what the whiskers are 1.5 times of; default: the interquartile range.
    """
    p25, p50, p75 = quartiles
    reach = p75 - p25 if reach is None else reach
    whiskers = {"upper": min(p75 + 1.5 * reach, ends[1]), "lower": max(p25 - 1.5 * reach, ends[0])}
    return {"p25": p25, "p50": p50, "p75": p75, "p95": p95, **whiskers}


def _rounded(values: Floats, bits: int) -> Floats:
    """The values without their lowest `bits` bits of mantissa: towards zero, so that rounding again changes nothing."""
    if bits == 0:
        return values
    kept = np.int64(-1) << np.int64(bits)
    return (values.view(np.int64) & kept).view(np.float64)


def _grouped(values: Floats, counts: Ints) -> tuple[Floats, Ints]:
    distinct, inverse = np.unique(values, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, inverse, counts)
    return distinct, sums


class Series:
    """Values in the order they came, growing: what compat="service" looks back on."""

    def __init__(self) -> None:
        self._buffer: Floats = np.empty(256)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, values: Floats) -> None:
        """Append values."""
        needed = self._length + len(values)
        if needed > len(self._buffer):
            grown = np.empty(2 * needed)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
        self._buffer[self._length : needed] = values
        self._length = needed

    @property
    def values(self) -> Floats:
        """All values, a view."""
        return self._buffer[: self._length]


def whole_box(values: Floats, reach_from: float | None = None) -> dict[str, float]:
    """The box plot of all values; `reach_from`: the lower quartile that the whiskers are taken from, if another's."""
    p25, p50, p75, p95 = map(float, np.quantile(values, [0.25, 0.5, 0.75, 0.95]))
    reach = None if reach_from is None else p75 - reach_from
    return box((p25, p50, p75), p95, (float(values.min()), float(values.max())), reach)
