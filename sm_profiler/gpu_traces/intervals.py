"""Arithmetic of intervals: unions, what they cover, and which of nested intervals surrounds which."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Floats

Numbers = NDArray[np.intp]


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


def parents(start: Floats, end: Floats) -> Numbers:
    """Return for each of some properly nested intervals the number of the innermost one around it, -1 if none is.

    Args:
        start: ascending; of equal ones the longest first.
    """
    number = np.arange(len(start))
    parent = number - 1
    while True:  # each round skips what ended before; parents found so far shorten the way of later ones
        unfit = (parent >= 0) & (end[parent] < end[number])
        if not unfit.any():
            return parent
        parent[unfit] = parent[parent[unfit]]


def enclosing(start: Floats, end: Floats, parent: Numbers, moment: Floats) -> Numbers:
    """Return for each moment the number of the innermost of some nested intervals that contains it, -1 if none does.

    Args:
        start: of the intervals, as for `parents`.
        parent: what `parents` returned for them.
    """
    found = np.searchsorted(start, moment, "right") - 1
    while True:
        unfit = (found >= 0) & (end[found] < moment)
        if not unfit.any():
            return found
        found[unfit] = parent[found[unfit]]


def outermost(parent: Numbers) -> Numbers:
    """Return for each interval the outermost one around it, or itself."""
    root = np.arange(len(parent))
    while True:
        inner = parent[root] >= 0
        if not inner.any():
            return root
        root[inner] = parent[root[inner]]
