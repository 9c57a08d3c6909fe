"""Series of values judged by their latest ones, in a form that merges.

A rolling condition looks back on earlier values. To stay mergeable, a series keeps its first values as they came, until
later evaluations no longer depend on anything before the series; merging replays those behind the other series.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
from typing import Any

import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.rules.quantile_sketch import QuantileSketch

Chunk = Mapping[str, Floats]  # values of one window by name, in time order


EVERYTHING = -1


class RollingCondition:
    """Decides on the newest values of a series; stateless."""

    needed = 0.0  # values after which an evaluation no longer depends on what came before the series
    look_back = 0  # earlier values of each name that an evaluation uses; EVERYTHING for all

    def check(self, before: dict[str, int], tails: Chunk, new: Chunk) -> tuple[int, Any]:
        """Return how often the condition is met, and the evidence of the last time.

        Args:
            before: number of values of each name before `new`.
            tails: the last `look_back` of those, followed by `new`.
            new: values of the window.
        """
        raise NotImplementedError


class RollingSeries:
    """Values of one GPU or node."""

    def __init__(self, condition: RollingCondition, *, exact: bool = False) -> None:
        self._condition, self._exact = condition, exact
        self._head: list[tuple[int, Chunk]] = []
        self._counts: dict[str, int] = {}
        self._tails: dict[str, Floats] = {}
        self._late: dict[str, QuantileSketch] = {}  # values after the head
        self._early_hits, self._late_hits = 0, 0
        self.last_hit: tuple[int, Any] | None = None  # start of the window, evidence
        self.first_us: int | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> RollingSeries:
        """Return a series that shares the arrays, which never change."""
        made = copy(self)
        vars(made).update(
            _head=list(self._head),
            _counts=dict(self._counts),
            _tails=dict(self._tails),
            _late=deepcopy(self._late, memo),
        )
        return made

    def feed(self, start_us: int, chunk: Chunk) -> int:
        """Append a window's values; return how often they meet the condition."""
        self.first_us = start_us if self.first_us is None else self.first_us
        before = {name: self._counts.get(name, 0) for name in chunk}
        nothing = np.empty(0)
        tails = {name: np.concatenate([self._tails.get(name, nothing), values]) for name, values in chunk.items()}
        hits, evidence = self._condition.check(before, tails, chunk)
        if self._exact or min(before.values(), default=0) < self._condition.needed:
            self._head.append((start_us, chunk))
            self._early_hits += hits
        else:
            self._late_hits += hits
            for name, values in chunk.items():
                self._late.setdefault(name, QuantileSketch()).add(values)
        if hits:
            self.last_hit = (start_us, evidence)
        for name, values in chunk.items():
            self._counts[name] = before[name] + len(values)
            look_back = self._condition.look_back
            self._tails[name] = (
                tails[name] if look_back == EVERYTHING else tails[name][-look_back:] if look_back else nothing
            )
        return hits

    def merge(self, other: RollingSeries) -> RollingSeries:
        """Return the series of both; their times must not overlap."""
        first, second = (self, other) if (self.first_us or 0) <= (other.first_us or 0) else (other, self)
        first.append(second)
        return first

    def append(self, later: RollingSeries) -> None:
        """Add a series whose values all came later."""
        head, late, late_hits = later._head, later._late, later._late_hits
        counts, tails = later._counts, later._tails
        replayed: dict[str, int] = {}
        for start_us, chunk in head:
            self.feed(start_us, chunk)
            for name, values in chunk.items():
                replayed[name] = replayed.get(name, 0) + len(values)
        if not late:
            return
        self._late_hits += late_hits
        for name, sketch in late.items():
            self._late.setdefault(name, QuantileSketch()).merge(sketch)
        for name, total in counts.items():
            self._counts[name] = self._counts.get(name, 0) + total - replayed.get(name, 0)
            self._tails[name] = tails[name]
        if late_hits and later.last_hit:
            self.last_hit = later.last_hit

    def nothing(self) -> Chunk:
        """Return a window without new values."""
        return dict.fromkeys(self._counts, np.empty(0))

    @property
    def hits(self) -> int:
        """Number of times that the condition was met."""
        return self._early_hits + self._late_hits

    def count(self, name: str) -> int:
        """Return the number of values of one name."""
        return self._counts.get(name, 0)

    def sketch(self, name: str, first: int | None = None) -> QuantileSketch:
        """Return all values of one name, or the first ones of an exact series."""
        total = QuantileSketch(exact=self._exact)
        if name in self._late:
            total.merge(self._late[name])
        for _, chunk in self._head:
            if name in chunk:
                total.add(chunk[name] if first is None else chunk[name][: max(first - total.count, 0)])
        return total


def merge_series(mine: dict[Any, RollingSeries], theirs: Mapping[Any, RollingSeries]) -> None:
    """Merge the series of another part of the job into `mine`, key by key."""
    for key, series in theirs.items():
        mine[key] = mine[key].merge(series) if key in mine else series
