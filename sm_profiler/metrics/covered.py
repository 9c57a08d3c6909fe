"""Time that spans cover: overlaps count once, and what lies inside other spans can be subtracted."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats, Mask


@attrs.frozen(eq=False)
class Covered:
    """The union of spans.

    Attributes:
        edges: start, end, start, end, … of the disjoint spans, ascending.
        before: time covered before each edge.
    """

    edges: Floats
    before: Floats

    @classmethod
    def by(cls, start: Floats, end: Floats) -> Covered:
        """Return the union of spans, given in any order."""
        if not len(start):
            return cls(np.zeros(1), np.zeros(1))
        order = np.argsort(start, kind="stable")
        start, latest = start[order], np.maximum.accumulate(end[order])
        opens = np.concatenate([[True], start[1:] > latest[:-1]])
        begins = start[opens]
        ends = latest[np.append(np.flatnonzero(opens)[1:] - 1, len(latest) - 1)]
        edges = np.column_stack([begins, ends]).ravel()
        lengths = np.where(np.arange(len(edges)) % 2 == 1, edges - np.roll(edges, 1), 0.0)
        return cls(edges, np.cumsum(lengths))

    def within(self, start: Floats | float, end: Floats | float) -> Floats:
        """Return how much of each span is covered."""
        covered = np.interp(end, self.edges, self.before) - np.interp(start, self.edges, self.before)
        return np.asarray(np.maximum(covered, 0.0))


def not_covered_before(start: Floats, end: Floats) -> Floats:
    """Return from where on each span is not covered by earlier ones, at most its end; spans are ordered by their start."""
    latest = np.maximum.accumulate(end)
    before = np.concatenate([[-np.inf], latest[:-1]])[: len(end)]
    return np.asarray(np.minimum(np.maximum(start, before), np.maximum(end, start)))


def without_inner(start: Floats, end: Floats) -> Floats:
    """Return the duration of each span without the spans nested in it; spans are ordered by their start."""
    own = np.asarray(end - start, np.float64).copy()
    open_spans: list[int] = []
    for index in sorted(range(len(start)), key=lambda one: (start[one], -end[one])):
        while open_spans and end[open_spans[-1]] <= start[index]:
            open_spans.pop()
        if open_spans:
            own[open_spans[-1]] -= max(min(end[index], end[open_spans[-1]]) - start[index], 0.0)
        open_spans.append(index)
    return np.maximum(own, 0.0)


def contains_any(start: Floats, end: Floats, inner: Sequence[Floats]) -> Mask:
    """Return for each span whether it contains one of the inner spans, given as starts and ends, completely."""
    inner_start, inner_end = inner
    if not len(inner_start):
        return np.zeros(len(start), np.bool_)
    first = np.searchsorted(inner_start, start, side="left")
    known = first < len(inner_start)
    return np.asarray(known & (inner_end[np.minimum(first, len(inner_start) - 1)] <= end))
