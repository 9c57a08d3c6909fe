"""When and where time is lost: among the steps, and among the ranks."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.formats.columns import Floats, Ints, Mask


@attrs.frozen
class Stretch:
    """Steps that are slower than those around them.

    Attributes:
        first, last: places of its first step and of the step after its last.
        factor: how many times as long its steps are.
        open: it lasts until the end of the recording.
    """

    first: int
    last: int
    factor: float
    open: bool


def relative(seconds: Floats, groups: Ints) -> Floats:
    """Return seconds as multiples of what the other ranks of the same group take in the same step.

    Args:
        seconds: shape (ranks, steps).
        groups: group of each rank, such as its pipeline stage; a rank that is alone in its group is compared with all.
    """
    found = np.ones_like(seconds)
    if len(seconds) < 2:
        return found
    of_all = _median_of_others(seconds)
    for group in np.unique(groups).tolist():
        rows = np.flatnonzero(groups == group)
        usual = _median_of_others(seconds[rows]) if len(rows) > 1 else of_all[rows]
        found[rows] = seconds[rows] / np.where(usual > 0, usual, np.inf)
    return found


def _median_of_others(seconds: Floats) -> Floats:
    """Return the median of each column without the row's own value: of sorted values, those after it move up."""
    count = len(seconds)
    ordered, place = np.sort(seconds, axis=0), np.argsort(np.argsort(seconds, axis=0, kind="stable"), axis=0)
    middle = ((count - 2) // 2, (count - 1) // 2)
    low, high = (np.where(place <= at, ordered[at + 1], ordered[at]) for at in middle)
    return np.asarray((low + high) / 2)


def slow_stretch(ratio: Floats) -> Stretch | None:
    """Return the stretch of steps that is slower than the rest beyond chance, or None.

    The stretch is that with the largest sum of what its steps take beyond the usual step and its noise; that it is no
    chance is tested against the same steps in other orders.

    Args:
        ratio: length of each step, as a multiple of anything that is the same for all steps.
    """
    if len(ratio) < 2 * limits.MIN_STEPS:
        return None
    usual = float(np.median(ratio))
    if usual <= 0:
        return None
    noise = float(np.median(np.abs(ratio - usual))) / 0.6745  # of a normal distribution: one standard deviation
    beyond = np.clip(ratio / usual - 1, -1.0, 1.0) - max(noise / usual, limits.FLOOR / 2)
    first, last, score = _largest_sum(beyond)
    if last - first < limits.MIN_STEPS or len(ratio) - (last - first) < limits.MIN_STEPS:
        return None
    shuffle = np.random.default_rng(limits.SEED)
    by_chance = [_largest_sum(shuffle.permutation(beyond))[2] for _ in range(limits.SHUFFLES)]
    if score <= max(by_chance):
        return None
    rest = np.r_[ratio[:first], ratio[last:]]
    factor = float(np.median(ratio[first:last]) / np.median(rest))
    return Stretch(first, last, factor, last >= len(ratio) - limits.MIN_STEPS) if factor > 1 else None


def _largest_sum(values: Floats) -> tuple[int, int, float]:
    """Return where the contiguous values with the largest sum begin and end, and the sum."""
    sums = np.r_[0.0, np.cumsum(values)]
    lowest = np.minimum.accumulate(sums)
    last = int((sums - lowest).argmax())
    first = int(sums[: last + 1].argmin())
    return first, last, float(sums[last] - sums[first])


def long_steps(seconds: Floats) -> Mask:
    """Return which steps are exceptions: longer than twice the usual step, and at most one of four."""
    usual = float(np.median(seconds)) if len(seconds) else 0.0
    long: Mask = seconds > 2 * usual
    return long if 0 < long.mean() <= limits.USUAL else np.zeros(len(seconds), np.bool_)


def period_of(long: Mask) -> int | None:
    """Return the number of steps from one long step to the next if they are regular."""
    gaps = np.diff(np.flatnonzero(long))
    if len(gaps) < limits.REPEATS:
        return None
    middle = int(np.median(gaps))
    return (
        middle if middle > 1 and float((np.abs(gaps - middle) <= max(1, 0.1 * middle)).mean()) >= limits.MOST else None
    )


def within_ranks(first: Floats, second: Floats, ranks: Sequence[int]) -> float:
    """Return the correlation of two quantities within each rank, -1 to 1: differences between ranks do not count."""
    a, b = first.astype(np.float64).copy(), second.astype(np.float64).copy()
    for rank in set(ranks):
        rows = np.asarray(ranks) == rank
        a[rows] -= a[rows].mean()
        b[rows] -= b[rows].mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else 0.0
