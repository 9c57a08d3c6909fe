"""Cut a job into parts that workers fold one by one.

A part is a number of whole slices (`rules.engine.slice_windows`). Its worker also reads some minutes before and after:
rows arrive in files that are named later, and events overlap with the windows after their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import attrs
import numpy as np

from sm_profiler.rules.window import LOOK_AHEAD_US, MAX_EMPTY_TOTAL, MAX_EMPTY_WINDOWS, MAX_SPAN_US, MINUTE_US
from sm_profiler.source.item import Item

SLACK_US = 2 * MINUTE_US  # rows end at most this long after the start of the minute in their file's name
TRIGGERS = 3  # minutes with files after the look-ahead: the first may hold nothing that is readable


@attrs.frozen
class Part:
    """Slices that one worker folds.

    Attributes:
        first, last: numbers of the slices; `last` is not included.
        start_us: where the worker begins to cut windows.
        from_us, until_us: start of its first window, and end of its last; None: to the end of the job.
        more: there are files after those it reads.
        own: the files that it accounts for.
        items: all files that it reads.
    """

    first: int
    last: int
    start_us: int
    from_us: int
    until_us: int | None
    more: bool
    own: tuple[Item, ...]
    items: tuple[Item, ...]


def minute_of(item: Item) -> int:
    """Return the start of the minute in a file's name."""
    return item.at_us - item.at_us % MINUTE_US


def plan_parts(items: Sequence[Item], parts: int, *, interval_us: int, slice_windows: int) -> list[Part]:
    """Cut a job into parts of about equal bytes.

    Args:
        items: its files, in reading order.
        parts: the number of parts at most.
        interval_us: length of a window.
        slice_windows: windows of a slice.

    Returns:
        The parts in the order of time; fewer than two if the job cannot be cut: it is short, or has gaps that windows skip.
    """
    if not items:
        return []
    minutes = np.asarray(sorted({minute_of(item) for item in items}))
    begin, slice_us = int(min(item.at_us for item in items)) // MINUTE_US * MINUTE_US, slice_windows * interval_us
    gaps = np.diff(minutes) // interval_us
    count = int((minutes[-1] - begin) // slice_us) + 1
    if (
        gaps.max(initial=0) >= MAX_EMPTY_WINDOWS
        or gaps[gaps > 1].sum() >= MAX_EMPTY_TOTAL
        or count * slice_us >= MAX_SPAN_US
    ):
        return []
    sizes = np.zeros(count)
    for item in items:
        sizes[(minute_of(item) - begin) // slice_us] += item.info.size
    ends = np.cumsum(sizes)
    cuts = sorted({0, count, *(int(np.searchsorted(ends, ends[-1] * part / parts)) + 1 for part in range(1, parts))})
    cuts = [cut for cut in cuts if cut <= count]
    warm_us = -(-(LOOK_AHEAD_US + SLACK_US) // interval_us) * interval_us + interval_us
    found = []
    for first, last in pairwise(cuts):
        from_us, until_us = begin + first * slice_us, begin + last * slice_us if last < count else None
        start_us = max(from_us - warm_us, begin)
        after = minutes[minutes >= until_us + LOOK_AHEAD_US][:TRIGGERS] if until_us is not None else minutes[-1:]
        end_us = int(after[-1]) if len(after) else int(minutes[-1])
        read = [
            item
            for item in items
            if (first == 0 or minute_of(item) >= start_us // MINUTE_US * MINUTE_US) and minute_of(item) <= end_us
        ]
        own = [
            item
            for item in items
            if (first == 0 or minute_of(item) >= from_us) and (until_us is None or minute_of(item) < until_us)
        ]
        found.append(Part(first, last, start_us, from_us, until_us, end_us < int(minutes[-1]), tuple(own), tuple(read)))
    return found
