"""The recursion limit: torch adds a frame to each module's call while hooks are registered."""

from __future__ import annotations

import sys

FRAMES = 4  # of Python and C for a call of a module without hooks; with them, torch adds one
OWN = 50  # for what a hook calls itself


class Recursion:
    """Raises the recursion limit, so that a model nests as deep as it could without us."""

    def __init__(self) -> None:
        self._before = self._ours = 0

    def install(self) -> None:
        """Raise the limit."""
        self._before = sys.getrecursionlimit()
        self._ours = self._before + self._before // FRAMES + OWN
        sys.setrecursionlimit(self._ours)

    def remove(self) -> None:
        """Restore the limit, unless the script has set another one."""
        if self._ours and sys.getrecursionlimit() == self._ours:
            sys.setrecursionlimit(self._before)
        self._ours = 0
