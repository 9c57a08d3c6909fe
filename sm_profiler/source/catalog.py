"""The files of a job, and the new ones among them."""

from __future__ import annotations

import calendar
import time
from bisect import bisect_right, insort
from collections.abc import Iterator
from itertools import chain
from typing import Any

import attrs
import numpy as np

from sm_profiler.formats import layout
from sm_profiler.formats.columns import Mask
from sm_profiler.formats.layout import DetailedTrace, SystemFile, TraceFile, TraceMetadata
from sm_profiler.settings import TRAILING
from sm_profiler.source.item_table import Item, ItemTable, OrderedItems, item_of
from sm_profiler.storage import FileInfo, Storage

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


_SURELY_S = 3600.0  # an end marker of so long before a listing, by clocks that differ: all files were there
_CLOCKS_US = layout.MINUTE_US  # tolerated lead of the clock that names files over the clock that dates them


class Catalog:
    """The files of one profiler output.

    Attributes:
        strays: data files that are not read because of the time in their name, by key, each with the reason.
        others: Python statistics and metadata files, by key.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.strays: dict[str, str] = {}
        self._approximate: dict[str, Item] = {}
        self._timeless: dict[str, Item] = {}  # whose names have no time
        self._clusters = Clusters()
        self._job: Cluster | None = None
        self.others: dict[str, FileInfo] = {}
        self._metadata: dict[str, TraceMetadata] = {}
        self._markers: dict[str, FileInfo] = {}
        self._latest = {layout.SYSTEM: 0, layout.FRAMEWORK: 0}
        self._latest_of_host: dict[int, int] = {}
        self._is_kept = False  # whether the last listing was one of a moment

    @property
    def items(self) -> ItemTable:
        """The data files listed so far, by key."""
        return self._job.items if self._job else ItemTable()

    @property
    def ordered(self) -> OrderedItems:
        """The data files in reading order."""
        return self.items.ordered()

    def beside(self) -> list[FileInfo]:
        """Return the files that are not in `items`, by key."""
        found = self.others | self._markers | {key: self._stray(key) for key in self.strays}
        return [found[key] for key in sorted(found)]

    def _stray(self, key: str) -> FileInfo:
        return next(cluster.items[key].info for cluster in self._clusters if key in cluster.items)

    def refresh(self) -> OrderedItems:
        """List files that may be new since the last call; return the items that are new or have changed."""
        was_finished, started = self.finished, time.time()
        listed_all = not any(self._latest.values())
        found = self._list(everything=False)
        if not self.finished or was_finished:
            return found
        if not (listed_all and (self._is_kept or self._marked_us < (started - _SURELY_S) * 1e6)):
            # This is the last listing, so it leaves nothing out: files may have come while the first was under way.
            again = self._list(everything=True)
            found = ItemTable(chain(found, again)).ordered() if len(again) else found
        return found

    @property
    def finished(self) -> bool:
        """True if the job has ended: there is an end marker, and no later file of the first host, which writes it.

        Later files of the first host belong to a resumed run; those of other hosts are merely late.
        """
        if not self._markers:
            return False
        latest_us = self._latest_of_host[min(self._latest_of_host)] if self._latest_of_host else 0
        return latest_us <= self._marked_us + _CLOCKS_US

    @property
    def _marked_us(self) -> float:
        """Time of the last end marker, microseconds since the epoch."""
        return max(info.mtime for info in self._markers.values()) * layout.SECOND_US

    def _list(self, *, everything: bool) -> OrderedItems:
        trailing = TRAILING.read()
        found, timeless = ItemTable(), list[FileInfo]()
        is_first = not any(self._clusters)
        kept = self._kept() if is_first else None
        self._is_kept = kept is not None
        for part, folder in ((layout.SYSTEM, layout.SYSTEM_FOLDER), (layout.FRAMEWORK, layout.TRACE_FOLDER)):
            from_us = self._latest[part] - trailing
            after = None
            if from_us > 0 and not everything:
                number = from_us if part == layout.FRAMEWORK else from_us // layout.SECOND_US
                after = f"{folder}/{layout.hour_folder(from_us)}/{number}"
            for info in self.storage.list(part + "/", after) if kept is None else kept.beside_in(part + "/"):
                parsed = layout.parse_path(info.key)
                self._note_other(info, parsed)
                if isinstance(parsed, DetailedTrace):
                    timeless.append(info)  # its times are in another file, which may come later
                elif isinstance(parsed, (SystemFile, TraceFile)):
                    known = None if is_first else self._clusters.find(info.key, parsed)
                    self._note_new(info, parsed, known, None if is_first else found)
        for info in timeless:
            self._note_new(info, None, self._timeless.get(info.key), None if is_first else found)
        if is_first:
            found = self._all()
        readable = self._without_strays(found)
        self._note_latest(readable.ordered())
        corrected = self._correct_times()
        return (
            ItemTable(chain(readable.ordered(), corrected.ordered())).ordered()
            if len(corrected)
            else readable.ordered()
        )

    def _kept(self) -> Any:
        """Return the list of files that is kept with a profile in Parquet, if all of its times are those of one job."""
        contents = getattr(self.storage, "contents", None)
        return contents if contents is not None and self._clusters.take(contents.items.copy()) else None

    def _note_latest(self, items: OrderedItems) -> None:
        """Note the latest times: files to come have no earlier names than the trailing ones."""
        items = items.chosen(~are_future(items))
        for part, chosen in ((layout.SYSTEM, items.is_system), (layout.FRAMEWORK, ~items.is_system)):
            self._latest[part] = max(self._latest[part], int(items.at_us[chosen].max(initial=0)))
        hosts = items.hosts
        for host in np.unique(hosts).tolist():
            self._latest_of_host[host] = max(self._latest_of_host.get(host, 0), int(items.at_us[hosts == host].max()))

    def _correct_times(self) -> ItemTable:
        """Return the items whose start time was an estimate until their metadata file came."""
        guessed = list(self._approximate.values())
        found = [new for item in guessed if (new := self._item(item.info, item.file)) and not new.approximate]
        for item in found:
            self._note(item, self._timeless.get(item.info.key))
        return self._without_strays(ItemTable(found))

    def _note_other(self, info: FileInfo, parsed: layout.Parsed | None) -> None:
        if info.key in layout.END_MARKERS:
            self._markers[info.key] = info
        if isinstance(parsed, TraceMetadata):
            self._metadata.setdefault(parsed.folder, parsed)
        if isinstance(parsed, (TraceMetadata, layout.PythonStats)):
            self.others[info.key] = info

    def _all(self) -> ItemTable:
        """Return all items."""
        each = [cluster.items for cluster in self._clusters]
        return each[0].copy() if len(each) == 1 else ItemTable(chain.from_iterable(one.ordered() for one in each))

    def _note_new(
        self, info: FileInfo, parsed: SystemFile | TraceFile | None, known: Item | None, found: ItemTable | None
    ) -> None:
        if known is not None and (known.info.size, known.info.etag) == (info.size, info.etag):
            return
        item = self._item(info, parsed or layout.parse_path(info.key))
        if item is not None:
            self._note(item, known)
            if found is not None:
                found.put(item)

    def _note(self, item: Item, known: Item | None) -> None:
        """Add an item, or replace the one with its key."""
        key = item.info.key
        if known is not None:
            self._clusters.remove(known)
        self._approximate.pop(key, None)
        if isinstance(item.file, DetailedTrace):
            self._timeless[key] = item
        if item.approximate:
            self._approximate[key] = item
        self._clusters.add(item)

    def _without_strays(self, found: ItemTable) -> ItemTable:
        """Separate the items with an impossible time in their name; return the readable ones of `found` and of before.

        The times of a job lie close together. One far-off file would make readers walk years of empty minutes, and
        hide new files from the next listing.
        """
        job = self._clusters.job()
        if not len(found) or job is None:
            return ItemTable()
        others = [cluster for cluster in self._clusters if cluster is not job]
        if not others and not self.strays:
            self._job, self._clusters.joined = job, False
            return found
        moved = [item for item in found.ordered() if item.info.key not in job.items] if others else []
        back: list[Item] = []
        if job is not self._job or self._clusters.joined:
            back = [job.items[key] for key in self.strays if key not in found and key in job.items]
            moved = [item for cluster in others for item in cluster.items.ordered()]
            self.strays.clear()
            self._job, self._clusters.joined = job, False
        for item in moved:
            reason = "in the future" if self._clusters.of(item).is_future else "far from the job's other files"
            self.strays[item.info.key] = f"named by a time {reason}"
            found.discard(item)
        for item in found.ordered():
            self.strays.pop(item.info.key, None)
        for item in back:
            found.add(item)
        return found

    def _item(self, info: FileInfo, parsed: layout.Parsed | None) -> Item | None:
        if isinstance(parsed, (SystemFile, TraceFile)):
            return item_of(info, parsed)
        if not isinstance(parsed, DetailedTrace):
            return None
        metadata = self._metadata.get(parsed.folder)
        if metadata is None:
            start_us = _hour_us(parsed.hour)
            if start_us is None:
                return None
            return Item(info, start_us, parsed.host, layout.DETAILED_TRACE, start_us, approximate=True)
        node = layout.shown_node(metadata.source)
        node = node if node != metadata.source else parsed.host
        return Item(info, metadata.end_us, node, layout.DETAILED_TRACE, metadata.start_us)


def _hour_us(hour: str) -> int | None:
    try:
        return calendar.timegm(time.strptime(hour, "%Y%m%d%H")) * layout.SECOND_US
    except ValueError:
        return None
