"""Arithmetic of intervals: unions, what they cover, and which of nested intervals surrounds which."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Floats

Numbers = NDArray[np.intp]
_ROUNDS = 64  # passes over those that are not done, which are few; deeper nests need a stack


def union(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Return the union of intervals as starts and ends of disjoint ones, in order."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return start[first], reach[last]


def total(start: Floats, end: Floats) -> float:
    """Return the length of the union of intervals."""
    starts, ends = union(start, end)
    return float((ends - starts).sum())


def intersection(first: tuple[Floats, Floats], second: tuple[Floats, Floats]) -> float:
    """Return the length that two unions have in common."""
    length = sum(float((ends - starts).sum()) for starts, ends in (first, second))
    return length - total(np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]]))


def covered(start: Floats, end: Floats, by: tuple[Floats, Floats]) -> Floats:
    """Return the length of each interval that a union covers."""
    starts, ends = by
    if not len(starts):
        return np.zeros(len(start))
    before = np.concatenate([[0.0], np.cumsum(ends - starts)])

    def until(moment: Floats) -> Floats:
        at = np.searchsorted(starts, moment, "right")
        whole = before[np.maximum(at - 1, 0)]
        part = np.clip(moment - starts[np.maximum(at - 1, 0)], 0, (ends - starts)[np.maximum(at - 1, 0)])
        return np.where(at > 0, whole + part, 0.0)

    return until(end) - until(start)


class Nest:
    """Intervals that nest on each thread. Nothing here takes a pass over all of them for each level: they may be nested deep.

    Attributes:
        parent: number of the innermost interval around each, -1 if none is.
    """

    def __init__(self, thread: NDArray[np.signedinteger[Any]], start: Floats, end: Floats) -> None:
        """Nest intervals.

        Args:
            thread: ascending.
            start: ascending on each thread; of equal ones the longest first.
        """
        self._start, self._end = start, end
        self._threads, self._first = np.unique(thread, return_index=True)
        self.parent = _parents(self._first, end)

    @cached_property
    def outermost(self) -> Numbers:
        """Number of the outermost interval around each, or of itself."""
        root = np.where(self.parent >= 0, self.parent, np.arange(len(self.parent)))
        while (self.parent[root] >= 0).any():
            root = root[root]  # twice as far in each round
        return root

    @cached_property
    def _ancestors(self) -> list[Numbers]:
        """Numbers of the first ancestor of each interval, the second, the fourth and so on."""
        found = [self.parent]
        while (found[-1] >= 0).any():
            found.append(np.where(found[-1] >= 0, found[-1][found[-1]], -1))
        return found

    def around(self, thread: NDArray[np.signedinteger[Any]], moment: Floats) -> Numbers:
        """Return for each moment on a thread the number of the innermost interval that contains it, -1 if none does."""
        found = self._last_begun(thread, moment)
        ended = np.flatnonzero(self._end[found] < moment) if len(self._end) else found[:0]
        ended = ended[found[ended] >= 0]
        if not len(ended):
            return found
        at, until = found[ended], moment[ended]
        for ancestor in reversed(self._ancestors):  # ancestors end later and later
            further = ancestor[at]
            at = np.where((further >= 0) & (self._end[further] < until), further, at)
        found[ended] = self.parent[at]
        return found

    def _last_begun(self, thread: NDArray[np.signedinteger[Any]], moment: Floats) -> Numbers:
        """Return the number of the last interval of a thread that began until a moment, -1 if none had."""
        if not len(self._start):
            return np.full(len(moment), -1, np.intp)
        of = np.minimum(np.searchsorted(self._threads, thread), len(self._threads) - 1)
        first, after = self._first[of], np.append(self._first[1:], len(self._start))[of]
        low, high = first.copy(), np.where(self._threads[of] == thread, after, first)
        while (searched := low < high).any():
            middle = np.minimum((low + high) // 2, len(self._start) - 1)
            begun = self._start[middle] <= moment
            low = np.where(searched & begun, middle + 1, low)
            high = np.where(searched & ~begun, middle, high)
        return np.where(low > first, low - 1, -1)


def _parents(first: Numbers, end: Floats) -> Numbers:
    """Return for each interval the last one before it on its thread that does not end earlier, -1 if there is none.

    Args:
        first: number of the first interval of each thread.
    """
    parent = np.arange(len(end)) - 1
    parent[first] = -1
    left = np.flatnonzero((parent >= 0) & (end[parent] < end))
    for _ in range(_ROUNDS):
        if not len(left):
            return parent
        parent[left] = parent[parent[left]]
        left = left[(parent[left] >= 0) & (end[parent[left]] < end[left])]
    borders = {*first.tolist()}
    open_ends, open_numbers = [np.inf], [-1]
    for number, until in enumerate(end.tolist()):
        if number in borders:
            open_ends, open_numbers = [np.inf], [-1]
        while open_ends[-1] < until:
            open_ends.pop()
            open_numbers.pop()
        parent[number] = open_numbers[-1]
        open_ends.append(until)
        open_numbers.append(number)
    return parent
