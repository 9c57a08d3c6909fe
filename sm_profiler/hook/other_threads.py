"""Stacks of other threads, each as it is at one moment.

Python switches threads between any two instructions of its code. A thread whose stack was followed by `frame.f_back`, one
frame after the other, might run in the meantime; CPython 3.11 then follows pointers to frames that are gone, and the
process dies of a segmentation fault. So a stack is read within one call of C code, in which no other thread runs. A
collection may begin within that call and run callbacks in Python, so the garbage collector is disabled for the call.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain, islice, repeat, starmap, takewhile
from operator import is_not, methodcaller
from types import FrameType
from typing import Any

MAX_DEPTH = 2000  # frames read
Stack = list[FrameType]  # the innermost frame first
Frames = Callable[[], dict[int, FrameType]]
current_frames: Frames = sys._current_frames  # the only way to another thread's stack


def stack_of(thread: int | None, frames: Frames = current_frames) -> Stack:
    """Return the frames of a thread; none if it does not run.

    Args:
        thread: its id.
        frames: returns the innermost frame of each thread.
    """
    return _followed(map(methodcaller("get", thread), starmap(frames, [()])))


def outwards(frame: FrameType | None) -> Stack:
    """Return a frame and those around it; the thread must not run during the call."""
    return _followed([frame])


def _followed(innermost: Iterable[FrameType | None]) -> Stack:
    """Return a single frame and those around it; iterators of C code are put together, so that nothing else runs."""
    steps: Iterator[Any] = chain(innermost, repeat("f_back"))  # a frame, then this of each
    with without_collections():
        return list(islice(takewhile(partial(is_not, None), accumulate(steps, getattr)), MAX_DEPTH))


@contextmanager
def without_collections() -> Iterator[None]:
    """Disable the garbage collector during the block."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
