"""Conversion from the monotonic clock, which measures spans, to the wall clock, which files use."""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs

JUMP_NS = 100_000_000  # more than slewing moves a clock between two checks


@attrs.define(eq=False)
class Timebase:
    """Offset between the two clocks, measured again only after the wall clock was set.

    Attributes:
        offset_ns: wall clock minus monotonic clock.
        jumps: number of times the wall clock was set.
    """

    wall_ns: Callable[[], int] = time.time_ns
    monotonic_ns: Callable[[], int] = time.perf_counter_ns
    offset_ns: int = attrs.field(init=False)
    jumps: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.offset_ns = self._measure()

    def to_us(self, monotonic_ns: int) -> int:
        """Convert a monotonic time to microseconds since the epoch."""
        return (monotonic_ns + self.offset_ns) // 1000

    def now_us(self) -> int:
        """Return the current time in microseconds since the epoch."""
        return self.to_us(self.monotonic_ns())

    def has_jumped(self) -> bool:
        """Return whether the wall clock was set since the last check; if so, measure the offset again."""
        offset = self._measure()
        if abs(offset - self.offset_ns) < JUMP_NS:
            return False
        self.offset_ns = offset
        self.jumps += 1
        return True

    def _measure(self) -> int:
        """Return the closest of three readings: the process may be preempted between reading the two clocks."""
        best = (1 << 63, 0)
        for _ in range(3):
            before = self.monotonic_ns()
            wall = self.wall_ns()
            after = self.monotonic_ns()
            best = min(best, (after - before, wall - (before + after) // 2))
        return best[1]
