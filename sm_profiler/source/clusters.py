"""Files grouped by the times in their names: one far-off file must not make readers walk years of empty minutes."""

from __future__ import annotations

import time
from bisect import bisect_right, insort
from collections.abc import Iterator

import attrs
import numpy as np

from sm_profiler.formats import layout
from sm_profiler.formats.columns import Mask
from sm_profiler.formats.layout import SystemFile, TraceFile
from sm_profiler.source.item import Item
from sm_profiler.source.item_table import ItemTable, OrderedItems

_DAY_US = 24 * 60 * layout.MINUTE_US
_FUTURE_US = _DAY_US  # tolerated lead of the clock that names files over the reader's
_FAR_US = 100 * _DAY_US  # jobs end after 28 days; files of one job are never further apart


@attrs.define(eq=False)
class Cluster:
    """Items whose times lie close together.

    Attributes:
        first_us, last_us: their range.
        lead_us: least lead of a name's time over the time of the file's last change.
        items: the items by key.
    """

    first_us: int
    last_us: int
    lead_us: float = float("inf")
    items: ItemTable = attrs.field(factory=ItemTable)

    def add(self, item: Item) -> None:
        """Add an item, whose key is new."""
        self.first_us, self.last_us = min(self.first_us, item.at_us), max(self.last_us, item.at_us)
        self.lead_us = min(self.lead_us, item.at_us - item.info.mtime * layout.SECOND_US)
        self.items.put(item)

    def is_near(self, at_us: int) -> bool:
        """Return whether a time belongs to this cluster."""
        return self.first_us - _FAR_US <= at_us <= self.last_us + _FAR_US

    @property
    def is_future(self) -> bool:
        """True if all of its times are in the future, by this machine's clock and by that of the storage."""
        return self.first_us > time.time() * layout.SECOND_US + _FUTURE_US and self.lead_us > _FUTURE_US


class Clusters:
    """All items of a catalog, clustered as they come: new ones are merged, the known are not sorted again."""

    def __init__(self) -> None:
        self._clusters: list[Cluster] = []  # in the order of time; their ranges are disjoint
        self.joined = False  # whether clusters have become one since this was last reset

    def __iter__(self) -> Iterator[Cluster]:
        return iter(self._clusters)

    def of(self, item: Item) -> Cluster:
        """Return the cluster of an item that has been added."""
        return self._clusters[self._place(item.at_us)]

    def find(self, key: str, file: SystemFile | TraceFile) -> Item | None:
        """Return the item with a key and its parsed name; None if there is none."""
        return self._clusters[self._place(file.at_us)].items.find(key, file) if self._clusters else None

    def _place(self, at_us: int) -> int:
        return bisect_right(self._clusters, at_us, key=_first_us) - 1

    def add(self, item: Item) -> None:
        """Add an item to the clusters that its time belongs to, which become one."""
        at = bisect_right(self._clusters, item.at_us, key=_first_us)
        near = [one for one in self._clusters[max(at - 1, 0) : at + 1] if one.is_near(item.at_us)]
        if not near:
            insort(self._clusters, made := Cluster(item.at_us, item.at_us), key=_first_us)
            made.add(item)
            return
        near[0].add(item)
        for other in near[1:]:
            self.joined = True
            self._clusters.remove(other)
            for each in other.items.ordered():
                near[0].add(each)

    def take(self, items: ItemTable) -> bool:
        """Have these be all items, without a look at each, and return True; False if they are not one cluster."""
        found = items.ordered()
        if not len(found) or np.diff(np.sort(found.at_us)).max(initial=0) > _FAR_US:
            return False
        lead_us = float((found.at_us - found.mtimes * layout.SECOND_US).min())
        self._clusters = [Cluster(int(found.at_us.min()), int(found.at_us.max()), lead_us, items)]
        return True

    def remove(self, item: Item) -> None:
        """Remove an item that has been added."""
        cluster = self.of(item)
        cluster.items.discard(item)
        if not len(cluster.items):
            self._clusters.remove(cluster)

    def job(self) -> Cluster | None:
        """Return the cluster of the job: the largest, or of several the latest. One of the future is a job only if it is all there is."""
        latest_first = reversed(self._clusters)  # the reader's clock may be wrong
        return max(latest_first, key=lambda one: (not one.is_future, len(one.items)), default=None)


def _first_us(cluster: Cluster) -> int:
    return cluster.first_us


def are_future(items: OrderedItems) -> Mask:
    """Return whether the time in each item's name is in the future, by this machine's clock and by that of the storage."""
    now_us = time.time() * layout.SECOND_US
    found: Mask = items.at_us > np.maximum(now_us, items.mtimes * layout.SECOND_US) + _FUTURE_US
    return found
