"""When a collector is on: one small state machine, asked at every step boundary, without a clock of its own."""

from __future__ import annotations

from typing import Protocol

import attrs


class Range(Protocol):
    """The range of a metrics config, as the configuration gives it (each None where it was not given)."""

    @property
    def start_step(self) -> int | None:
        """First step."""

    @property
    def num_steps(self) -> int | None:
        """How many steps."""

    @property
    def start_time(self) -> float | None:
        """Seconds since the epoch."""

    @property
    def duration(self) -> float | None:
        """Seconds."""


def bounds(of: Range) -> tuple[float | None, ...]:
    """What makes two ranges the same."""
    return (of.start_step, of.num_steps, of.start_time, of.duration)


class Collector(Protocol):
    """What is on only inside its window."""

    def enter(self, step: int) -> None:
        """The first step of the window begins."""

    def leave(self, step: int) -> None:
        """The first step after the window begins, or the job ends (`step` -1)."""


@attrs.define(eq=False)
class Window:
    """Decides, step by step, whether a collector is active.

    A window that ended never opens again; a changed range needs a new object.  Time ranges open by the wall clock and
    close by the monotonic one, so that a clock that jumps neither shortens nor stretches an open window.

    Attributes:
        range: what the configuration says.
    """

    range: Range
    active: bool = attrs.field(default=False, init=False)
    ended: bool = attrs.field(default=False, init=False)
    _first_step: int | None = attrs.field(default=None, init=False)
    _open_until: float | None = attrs.field(default=None, init=False)
    _only: int | None = attrs.field(default=None, init=False)

    def at_step(self, step: int, now: float, monotonic: float) -> bool:
        """Whether the step that begins now is inside.

        Args:
            step: the global step, counted from 0, never falling.
            now: seconds since the epoch.
            monotonic: seconds that never run backwards.
        """
        if self.ended:
            self.active = False
            return False
        if self._first_step is None:
            self._first_step = step
        inside = self._by_step(step) if self._counts_steps() else self._by_time(step, now, monotonic)
        if self.active and not inside:
            self.ended = True
        self.active = inside
        return inside

    def _counts_steps(self) -> bool:
        return self.range.start_step is not None or self.range.num_steps is not None

    def _by_step(self, step: int) -> bool:
        start = self._first_step if self.range.start_step is None else self.range.start_step
        count = 1 if self.range.num_steps is None else self.range.num_steps
        if start is None or step >= start + count:
            self.ended = True
            return False
        return start <= step

    def _by_time(self, step: int, now: float, monotonic: float) -> bool:
        start, duration = self.range.start_time, self.range.duration
        if start is None and duration is None:
            self.ended = True
            return False
        if self._open_until is not None:
            # The step that opened the window is profiled even where the window was over before it began.
            return step == self._only or monotonic < self._open_until
        if start is not None and now < start:
            return False
        left = 0.0 if duration is None else duration if start is None else start + duration - now
        self._open_until, self._only = monotonic + left, step
        return True
