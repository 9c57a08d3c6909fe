"""When and where time is lost: among the steps, and among the ranks."""

from __future__ import annotations

from statistics import NormalDist

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.blocks import growth_of_blocks
from sm_profiler.formats.columns import Floats, Ints, Mask
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.stalls import find_period

_MAD = NormalDist().inv_cdf(0.75)  # median absolute deviation of a normal distribution, in standard deviations


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

    def overlap(self, other: Stretch) -> float:
        """Return the share of the shorter stretch that is also in the other."""
        common = min(self.last, other.last) - max(self.first, other.first)
        return max(common, 0) / min(self.last - self.first, other.last - other.first)


def relative(seconds: Floats, groups: Ints) -> Floats:
    """Return seconds as multiples of what the other ranks of the same group take in the same step.

    Args:
        seconds: shape (ranks, steps).
        groups: group of each rank, such as its pipeline stage; a rank that is alone in its group is compared with all.
    """
    found = np.ones_like(seconds)
    if len(seconds) < 2:
        return found
    for group in np.unique(groups).tolist():
        rows = np.flatnonzero(groups == group)
        usual = _median_of_others(seconds[rows]) if len(rows) > 1 else _median_of_others(seconds)[rows]
        found[rows] = seconds[rows] / np.where(usual > 0, usual, np.inf)
    return found


def _median_of_others(seconds: Floats) -> Floats:
    """Return the median of each column without the row's own value: of sorted values, those after it move up."""
    middle = ((len(seconds) - 2) // 2, (len(seconds) - 1) // 2)
    ordered = np.partition(seconds, sorted({*middle, *(at + 1 for at in middle)}), axis=0)
    low, high = (np.where(seconds <= ordered[at], ordered[at + 1], ordered[at]) for at in middle)
    return np.asarray((low + high) / 2)


def slow_stretches(seconds: Floats, ratio: Floats) -> dict[int, Stretch]:
    """Return the stretches of steps that are slower than the rest beyond chance, by row.

    A stretch is that with the largest sum of what its steps take beyond the usual step and its noise; that it is no
    chance is tested against the same steps in other orders.

    Args:
        seconds: length of each step, shape (rows, steps).
        ratio: the same as a multiple of what it is compared with.
    """
    if ratio.shape[1] < 2 * limits.MIN_STEPS:
        return {}
    rows = zip(seconds, ratio, _beyond(ratio), _beyond(_speed(ratio)), strict=True)
    found = ((row, _stretch(*values)) for row, values in enumerate(rows))
    return {row: stretch for row, stretch in found if stretch is not None}


def _speed(ratio: Floats) -> Floats:
    return np.asarray(1 / np.maximum(ratio, 1e-12))


def _beyond(ratio: Floats) -> Floats:
    """Return what each step has beyond the usual one of its row and its noise, or what is not worth a repair."""
    usual = np.median(ratio, axis=1, keepdims=True)
    ratio = ratio / np.where(usual > 0, usual, np.inf)
    jumps = np.median(np.abs(np.diff(ratio, axis=1)), axis=1, keepdims=True)  # from step to step, so without a trend
    noise = jumps / (_MAD * 2**0.5)
    # a single step counts no more than a long one
    return np.asarray(np.minimum(ratio, thresholds.LONG_STEP) - 1 - np.maximum(noise, limits.FLOOR))


def _stretch(seconds: Floats, ratio: Floats, slow: Floats, fast: Floats) -> Stretch | None:
    count = len(ratio)
    first, last, score = _largest_sum(slow)
    begin, end, faster = _largest_sum(fast)
    if faster > score and (begin == 0 or end == count):  # most steps are slow: all but the first, or the last
        first, last, score, slow = end % count, begin or count, faster, fast
    steps = np.arange(count)
    inside = (steps >= first) & (steps < last)
    if not inside.any() or inside.all():
        return None
    long = ratio > (np.median(ratio[inside]) + np.median(ratio[~inside])) / 2
    first, last = _edges(long, first, last)
    inside = (steps >= first) & (steps < last)
    if min(inside.sum(), (~inside).sum()) < limits.MIN_STEPS or long[inside].mean() < 1 - limits.USUAL:
        return None
    usual, factor = (float(np.median(one[inside]) / max(np.median(one[~inside]), 1e-12)) for one in (seconds, ratio))
    # what it is compared with may have become slower meanwhile
    if (min(usual, factor) if slow is fast else factor) * (1 - limits.FLOOR) < 1:
        return None
    shuffle = np.random.default_rng(limits.SEED)
    if score <= max(_largest_sum(shuffle.permutation(slow))[2] for _ in range(limits.ROUNDS)):
        return None
    found = Stretch(first, last, factor, last >= count - limits.MIN_STEPS)
    level = np.where(inside, ratio / factor, ratio)
    # noise that neighbours share ends as it began, and makes other steps as much faster
    noise = _largest_sum(_beyond(_speed(level[None]))[0])[2]
    return found if found.open or score > limits.SURELY * noise else None


def goes_on_growing(seconds: Floats, stretch: Stretch) -> bool:
    """Return whether steps become slower little by little to the end, which a line describes better than a slow stretch."""
    count = min(len(seconds) // limits.BLOCKS[1], limits.BLOCKS[0])
    usual = np.asarray([np.median(one) for one in np.array_split(seconds, count)])
    at = min(max(round(stretch.first / len(seconds) * count), 1), count - 2)
    return stretch.open and growth_of_blocks(usual, at) > 0


def _edges(slow: Mask, first: int, last: int) -> tuple[int, int]:
    """Return the ends of a stretch, each where it separates slow steps from the others best: noise may hide those next to it."""
    middle = (first + last) // 2
    before, after = slow[:middle], slow[middle:]
    wrong_before = np.r_[0, np.cumsum(before)] + np.r_[np.cumsum(~before[::-1])[::-1], 0]
    wrong_after = np.r_[0, np.cumsum(~after)] + np.r_[np.cumsum(after[::-1])[::-1], 0]
    return int(wrong_before.argmin()), middle + int(wrong_after.argmin())


def _largest_sum(values: Floats) -> tuple[int, int, float]:
    """Return where the contiguous values with the largest sum begin and end, and the sum."""
    sums = np.r_[0.0, np.cumsum(values)]
    last = int((sums - np.minimum.accumulate(sums)).argmax())
    first = int(sums[: last + 1].argmin())
    return first, last, float(sums[last] - sums[first])


def long_steps(seconds: Floats) -> Mask:
    """Return which steps are exceptions: far longer than the usual step, also for its noise, and at most one of four."""
    usual = float(np.median(seconds))
    spread = float(np.median(np.abs(seconds - usual)))
    long: Mask = seconds - usual > max((thresholds.LONG_STEP - 1) * usual, thresholds.LONG_STEP_MADS * spread)
    return long if long.mean() <= limits.USUAL else np.zeros(len(seconds), np.bool_)


def warm_up(seconds: Floats) -> int:
    """Return the number of first steps that are long because they allocate, compile and start workers."""
    first = seconds[: int(thresholds.WARM_UP_STEPS)] > thresholds.LONG_STEP * np.median(seconds)
    return int(np.r_[first, False].argmin())


def period_of(seconds: Floats) -> int | None:
    """Return the number of steps from one step that takes any of these seconds to the next, if they are regular."""
    places = np.flatnonzero(seconds > 0)
    return find_period(places, seconds[places], len(seconds) - 1)[0]


def agreement_of(first: Floats, second: Floats, ranks: Ints) -> float:
    """Return the correlation of two quantities within each rank, without what most ranks have in common: that of most ranks.

    A rank on which the first hardly varies has none: it is jitter.

    Args:
        first, second: shape (rows, steps).
        ranks: rank of each row.
    """
    usual, first, second = first, first - np.median(first, axis=0), second - np.median(second, axis=0)
    found = []
    for rank in np.unique(ranks).tolist():
        rows = ranks == rank
        a, b = (values[rows] - values[rows].mean() for values in (first, second))
        scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
        varies = scale > 0 and a.std() > limits.REPEAT * np.abs(usual[rows]).mean()
        found.append(float((a * b).sum()) / scale if varies else 0.0)
    return float(np.median(found)) if found else 0.0
