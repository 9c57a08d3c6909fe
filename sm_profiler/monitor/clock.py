"""Ticks at fixed times: a late tick does not move the ones after it."""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs


@attrs.define(eq=False)
class Ticker:
    """Ticks every `interval` seconds of a clock that never runs backwards.

    Attributes:
        interval: seconds.
        late: ticks that came more than half an interval late.
        missed: ticks that were left out, because the next one was due already.
    """

    interval: float
    clock: Callable[[], float] = time.monotonic
    late: int = 0
    missed: int = 0
    _due: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._due = self.clock() + self.interval

    def wait_seconds(self) -> float:
        """How long until the next tick; 0 if it is due."""
        return max(self._due - self.clock(), 0.0)

    def advance(self) -> None:
        """The tick is done: the next one is due a whole number of intervals later, in the future."""
        behind = self.clock() - self._due
        if behind > self.interval / 2:
            self.late += 1
        skipped = max(int(behind // self.interval), 0)
        self.missed += skipped
        self._due += self.interval * (skipped + 1)
