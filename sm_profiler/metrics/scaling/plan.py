"""Cut a job into parts that workers fold one by one.

A part is a number of whole slices (`rules.engine.slice_windows`) of some nodes. Its worker also reads some minutes before
and after: rows arrive in files that are named later, and events overlap with the windows after their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import attrs
import numpy as np

from sm_profiler.formats.columns import Ints
from sm_profiler.rules.window import LOOK_AHEAD_US, MAX_EMPTY_TOTAL, MAX_EMPTY_WINDOWS, MAX_SPAN_US, MINUTE_US
from sm_profiler.source.item_table import OrderedItems

SLACK_US = 2 * MINUTE_US  # rows end at most this long after the start of the minute in their file's name
GROUP_BYTES = 64 << 20  # of files that a group of nodes writes in a minute: its worker holds six minutes of rows


@attrs.frozen
class Part:
    """Slices that one worker folds.

    Attributes:
        group: number of the nodes' group.
        hosts: numbers of its nodes; none: all nodes.
        first, last: numbers of the slices; `last` is not included.
        start_us: where the worker begins to cut windows.
        from_us, until_us: start of its first window, and end of its last; None: to the end of the job.
        more: there are files after those it reads.
        minutes: of all files in the time that it reads, those of other nodes too; empty without hosts.
        own: the files that it accounts for.
        items: all files that it reads.
    """

    group: int
    hosts: tuple[int, ...]
    first: int
    last: int
    start_us: int
    from_us: int
    until_us: int | None
    more: bool
    minutes: tuple[int, ...]
    own: OrderedItems
    items: OrderedItems

    @property
    def size(self) -> int:
        """Bytes that its worker reads."""
        return int(self.items.sizes.sum())


def group_nodes(items: OrderedItems, wanted: int) -> list[tuple[int, ...]]:
    """Divide the nodes of a job into groups of about equal bytes.

    Args:
        items: the job's files.
        wanted: number of groups at most.

    Returns:
        The numbers of the nodes of each group; one empty group if they cannot be divided.
    """
    hosts = items.hosts
    wanted = min(wanted, len(np.unique(hosts)))
    if wanted < 2 or not hosts.all():  # one group is all nodes
        return [()]
    nodes, places = np.unique(hosts, return_inverse=True)
    sizes = dict(zip(nodes.tolist(), np.bincount(places, items.sizes).tolist(), strict=True))
    groups: list[list[int]] = [[] for _ in range(wanted)]
    filled = np.zeros(wanted)
    for host in sorted(sizes, key=lambda host: (-sizes[host], host)):
        smallest = int(filled.argmin())
        groups[smallest].append(host)
        filled[smallest] += sizes[host] + 1
    return [tuple(sorted(group)) for group in groups]


def groups_needed(items: OrderedItems) -> int:
    """Return the number of groups of nodes of which each writes at most GROUP_BYTES a minute."""
    if not len(items):
        return 1
    minutes = (items.at_us - items.at_us.min()) // MINUTE_US
    span = int(minutes.max()) + 1
    return int(max(-(-int(items.sizes.sum()) // (span * GROUP_BYTES)), 1))


def plan_parts(
    items: OrderedItems,
    parts: int,
    *,
    interval_us: int,
    slice_windows: int,
    groups: int = 1,
) -> list[Part]:
    """Cut a job into parts of about equal bytes.

    Args:
        items: its files, in reading order.
        parts: the number of stretches of time at most.
        interval_us: length of a window.
        slice_windows: windows of a slice.
        groups: the number of groups of nodes at most, into which each stretch is divided.

    Returns:
        The parts in the order of time; fewer than two if the job cannot be cut: it is short, or has gaps that windows skip.
    """
    if not len(items):
        return []
    of_items: Ints = items.at_us - items.at_us % MINUTE_US
    minutes = np.unique(of_items)
    begin, slice_us = int(minutes[0]), slice_windows * interval_us
    gaps = np.diff(minutes) // interval_us
    count = int((minutes[-1] - begin) // slice_us) + 1
    if (
        gaps.max(initial=0) >= MAX_EMPTY_WINDOWS
        or gaps[gaps > 1].sum() >= MAX_EMPTY_TOTAL
        or count * slice_us >= MAX_SPAN_US
    ):
        return []
    ends = np.cumsum(np.bincount((of_items - begin) // slice_us, items.sizes, count))
    nearest = np.abs(ends[:, None] - ends[-1] * np.arange(1, parts) / parts).argmin(axis=0) + 1
    cuts = sorted({0, count, *nearest.tolist()})
    # Earlier rows that no file promises belong to a window before the first; rows of the others are in these files.
    warm_us = -(-SLACK_US // interval_us) * interval_us + interval_us
    grouped = group_nodes(items, groups)
    hosts = items.hosts

    def stretch(first: int, last: int) -> Iterator[Part]:
        from_us, until_us = begin + first * slice_us, begin + last * slice_us if last < count else None
        start_us = max(from_us - warm_us, begin)
        after = minutes[minutes >= until_us + LOOK_AHEAD_US] if until_us is not None else minutes[-1:]
        end_us = int(after[0]) if len(after) else int(minutes[-1])
        begin_us = start_us // MINUTE_US * MINUTE_US
        read = (of_items >= begin_us) & (of_items <= end_us)
        own = (of_items >= from_us) | (first == 0)
        if until_us is not None:
            own &= of_items < until_us
        clock = tuple(minutes[(minutes >= begin_us) & (minutes <= end_us)].tolist())
        more = end_us < int(minutes[-1])
        for number, group in enumerate(grouped):
            mine = np.isin(hosts, group) if group else np.ones(len(items), np.bool_)
            yield Part(
                number, group, first, last, start_us, from_us, until_us, more, clock if group else (),
                items.chosen(np.flatnonzero(own & mine)), items.chosen(np.flatnonzero(read & mine)),
            )  # fmt: skip

    return [part for first, last in pairwise(cuts) for part in stretch(first, last)]
