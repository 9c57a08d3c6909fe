"""Freed memory of this process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import cache


def trim() -> None:
    """Return freed memory to the system, which glibc keeps in pieces between arrays of a fold and rows of a minute."""
    if (release := _release()) is not None:
        release(0)


@cache
def _release() -> Callable[[int], int] | None:
    with suppress(OSError, AttributeError, TypeError):  # another C library than glibc
        function: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
        return function
    return None
