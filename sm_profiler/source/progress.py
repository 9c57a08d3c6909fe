"""A progress bar for long reads."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sm_profiler.source.item import Item

PATIENCE_S = 1.0
_WIDTH = 30


@contextmanager
def progress_bar(items: Sequence[Item], *, show: bool | None = None) -> Iterator[Callable[[Item], None]]:
    """Provide a function to call with each finished file; draws on standard error.

    Args:
        items: all the files.
        show: draw the bar; None: after a second, if standard error is a terminal.
    """
    total = sum(item.info.size for item in items) or 1
    started = time.monotonic()
    drawn = started if show is None else started - PATIENCE_S
    may_draw = sys.stderr.isatty() if show is None else show
    done = 0
    is_drawn = False

    def advance(item: Item) -> None:
        nonlocal done, drawn, is_drawn
        done += item.info.size
        now = time.monotonic()
        if may_draw and now - drawn >= (0.1 if is_drawn else PATIENCE_S):
            drawn, is_drawn = now, True
            full = _WIDTH * done // total
            bar = "#" * full + "." * (_WIDTH - full)
            sys.stderr.write(f"\rreading [{bar}] {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")
            sys.stderr.flush()

    try:
        yield advance
    finally:
        if is_drawn:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
