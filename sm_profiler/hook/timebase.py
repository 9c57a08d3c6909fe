"""From the monotonic clock that spans are measured with to the wall clock that files are written in."""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs

JUMP_NS = 100_000_000  # more than a clock is ever slewed between two looks


@attrs.define(eq=False)
class Timebase:
    """One anchor joins the two clocks; when the wall clock is set, a new anchor is taken, and nothing else changes.

    Attributes:
        offset_ns: wall clock minus monotonic clock.
        jumps: how often the wall clock was set.
    """

    wall_ns: Callable[[], int] = time.time_ns
    monotonic_ns: Callable[[], int] = time.perf_counter_ns
    offset_ns: int = attrs.field(init=False)
    jumps: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.offset_ns = self._measure()

    def to_us(self, monotonic_ns: int) -> int:
        """Microseconds since the epoch."""
        return (monotonic_ns + self.offset_ns) // 1000

    def now_us(self) -> int:
        """Microseconds since the epoch, now."""
        return self.to_us(self.monotonic_ns())

    def has_jumped(self) -> bool:
        """Whether the wall clock was set since the last look; if so, the anchor is new."""
        offset = self._measure()
        if abs(offset - self.offset_ns) < JUMP_NS:
            return False
        self.offset_ns = offset
        self.jumps += 1
        return True

    def _measure(self) -> int:
        """The closest of three readings: between the two clocks the process may have been put aside."""
        best = (1 << 63, 0)
        for _ in range(3):
            before = self.monotonic_ns()
            wall = self.wall_ns()
            after = self.monotonic_ns()
            best = min(best, (after - before, wall - (before + after) // 2))
        return best[1]
