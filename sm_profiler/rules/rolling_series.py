"""Tracks: values of one GPU (or one node) in time order, judged as they come by the last few of them.

A track is what lets a fold be merged although its judgement looks back: it keeps the first values as they came, until
it has seen enough for its judgements not to depend on anything before; merging replays these behind the other track.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.rules.quantile_sketch import Spread

Chunk = Mapping[str, Floats]  # what one window adds: the values of each series, in time order


class Judge:
    """Decides on the newest values of a track; stateless."""

    needed = 0  # so many values must have come before a judgement stops depending on what came before the track
    look_back = 0  # values of each series that a judgement looks at, besides the new ones

    def judge(self, before: dict[str, int], tails: Chunk, new: Chunk) -> tuple[int, dict[str, Any]]:
        """Returns how often the condition is met, and what the details say of the last time.

        before: how many values of each series came before `new`; tails: the last of them and `new`, together.
        """
        raise NotImplementedError


class Track:
    """The values of one key."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._head: list[tuple[int, Chunk]] = []
        self._counts: dict[str, int] = {}
        self._tails: dict[str, Floats] = {}
        self._late: dict[str, Spread] = {}  # values after the head
        self._early_hits, self._late_hits = 0, 0
        self.last_hit: tuple[int, dict[str, Any]] | None = None  # start of the window, details
        self.first_us: int | None = None

    def feed(self, start_us: int, chunk: Chunk) -> bool:
        """Take a window's values; True if the condition is met in it."""
        self.first_us = start_us if self.first_us is None else self.first_us
        before = {name: self._counts.get(name, 0) for name in chunk}
        nothing = np.empty(0)
        tails = {name: np.concatenate([self._tails.get(name, nothing), values]) for name, values in chunk.items()}
        hits, details = self._judge.judge(before, tails, chunk)
        is_head = min(before.values(), default=0) < self._judge.needed
        if is_head:
            self._head.append((start_us, chunk))
            self._early_hits += hits
        else:
            self._late_hits += hits
            for name, values in chunk.items():
                self._late.setdefault(name, Spread()).add(values)
        if hits:
            self.last_hit = (start_us, details)
        for name, values in chunk.items():
            self._counts[name] = before[name] + len(values)
            self._tails[name] = tails[name][-self._judge.look_back :] if self._judge.look_back else nothing
        return hits > 0

    def merge(self, other: Track) -> Track:
        """The track of both; their times must not overlap."""
        first, second = (self, other) if (self.first_us or 0) <= (other.first_us or 0) else (other, self)
        first.go_on_with(second)
        return first

    def go_on_with(self, later: Track) -> None:
        """Take in a track whose values all came later."""
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
        for name, spread in late.items():
            self._late.setdefault(name, Spread()).merge(spread)
        for name, total in counts.items():
            self._counts[name] = self._counts.get(name, 0) + total - replayed.get(name, 0)
            self._tails[name] = tails[name]
        if late_hits and later.last_hit:
            self.last_hit = later.last_hit

    @property
    def hits(self) -> int:
        """How often the condition was met."""
        return self._early_hits + self._late_hits

    def count(self, name: str) -> int:
        """How many values of a series came."""
        return self._counts.get(name, 0)

    def names(self) -> list[str]:
        """The series, in order of first appearance."""
        return list(self._counts)

    def spread(self, name: str) -> Spread:
        """All values of a series."""
        total = Spread()
        if name in self._late:
            total.merge(self._late[name])
        for _, chunk in self._head:
            if name in chunk:
                total.add(chunk[name])
        return total


def merge_tracks(mine: dict[Any, Track], theirs: Mapping[Any, Track]) -> None:
    """Merge tracks key by key."""
    for key, track in theirs.items():
        mine[key] = mine[key].merge(track) if key in mine else track
