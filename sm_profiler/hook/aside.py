"""Callbacks, saving and logging on the training thread: what they launch is not the work of the step around them."""

from __future__ import annotations


class Aside:
    """The calls that run, one inside the other, and how long all of them took.

    Attributes:
        depth: calls that run.
        ns: nanoseconds of the outermost calls that ended.
    """

    def __init__(self) -> None:
        self.depth = self.ns = 0

    def leave(self, taken_ns: int) -> None:
        """Note the end of a call."""
        self.depth -= 1
        if self.depth == 0:
            self.ns += taken_ns
