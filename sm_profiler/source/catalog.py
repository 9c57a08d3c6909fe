"""The files of a job, and the new ones among them."""

from __future__ import annotations

import calendar
import os
import time
from bisect import bisect_left
from collections.abc import Iterable
from sys import intern

from sm_profiler.errors import SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.layout import DetailedTrace, SystemFile, TraceFile, TraceMetadata
from sm_profiler.source.clusters import Cluster, Clusters, is_future
from sm_profiler.source.item import Item, Order
from sm_profiler.storage import FileInfo, Storage

TRAILING_US = 5 * layout.MINUTE_US
_CLOCKS_US = layout.MINUTE_US  # tolerated lead of the clock that names files over the clock that dates them


def duration_us(variable: str, default: int) -> int:
    """Return a number of microseconds from the environment."""
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        return int(float(text))
    except (ValueError, OverflowError) as error:
        raise SourceError(f"{variable} is {text!r}, not a number of microseconds") from error


class Catalog:
    """The files of one profiler output.

    Attributes:
        strays: data files that are not read because of the time in their name, by key, each with the reason.
        others: Python statistics and metadata files, by key.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.strays: dict[str, str] = {}
        self._known: dict[str, Item] = {}  # strays included
        self._approximate: dict[str, Item] = {}
        self._clusters = Clusters()
        self._job: Cluster | None = None
        self._ordered: list[Item] | None = None  # None: to be sorted
        self.others: dict[str, FileInfo] = {}
        self._metadata: dict[str, TraceMetadata] = {}
        self._markers: dict[str, FileInfo] = {}
        self._latest = {layout.SYSTEM: 0, layout.FRAMEWORK: 0}
        self._latest_of_host: dict[int, int] = {}

    @property
    def items(self) -> dict[str, Item]:
        """The data files listed so far, by key."""
        return self._job.items if self._job else {}

    @property
    def ordered(self) -> list[Item]:
        """The data files in reading order."""
        if self._ordered is None:
            self._ordered = sorted(self.items.values(), key=_order)
        return self._ordered

    def beside(self) -> list[FileInfo]:
        """Return the files that are not in `items`, by key."""
        found = self.others | self._markers | {key: self._known[key].info for key in self.strays}
        return [found[key] for key in sorted(found)]

    def refresh(self) -> list[Item]:
        """List files that may be new since the last call; return the items that are new or have changed."""
        was_finished = self.finished
        found = self._list(everything=False)
        if self.finished and not was_finished:
            # This is the last listing, so it leaves nothing out.
            found += self._list(everything=True)
        return found

    @property
    def finished(self) -> bool:
        """True if the job has ended: there is an end marker, and no later file of the first host, which writes it.

        Later files of the first host belong to a resumed run; those of other hosts are merely late.
        """
        if not self._markers:
            return False
        marked_us = max(info.mtime for info in self._markers.values()) * layout.SECOND_US
        latest_us = self._latest_of_host[min(self._latest_of_host)] if self._latest_of_host else 0
        return latest_us <= marked_us + _CLOCKS_US

    def _list(self, *, everything: bool) -> list[Item]:
        trailing = duration_us("TRAILING_DURATION_MICROSECONDS", TRAILING_US)
        listed: list[FileInfo] = []
        for part, folder in ((layout.SYSTEM, layout.SYSTEM_FOLDER), (layout.FRAMEWORK, layout.TRACE_FOLDER)):
            from_us = self._latest[part] - trailing
            after = None
            if from_us > 0 and not everything:
                number = from_us if part == layout.FRAMEWORK else from_us // layout.SECOND_US
                after = f"{folder}/{layout.hour_folder(from_us)}/{number}"
            infos = list(self.storage.list(part + "/", after))
            self._note_others(infos)
            listed += infos
        found = self._note_items(listed)
        for item in found:
            if is_future(item):
                continue  # files to come have earlier names
            part = layout.SYSTEM if item.is_system else layout.FRAMEWORK
            self._latest[part] = max(self._latest[part], item.at_us)
            self._latest_of_host[item.host] = max(self._latest_of_host.get(item.host, 0), item.at_us)
        return found + self._correct_times()

    def _correct_times(self) -> list[Item]:
        """Return the items whose start time was an estimate until their metadata file came."""
        guessed = list(self._approximate.values())
        found = [new for item in guessed if (new := self._item(item.info)) and not new.approximate]
        for item in found:
            self._note(item)
        return self._without_strays(found)

    def _note_others(self, infos: Iterable[FileInfo]) -> None:
        for info in infos:
            if info.key in layout.END_MARKERS:
                self._markers[info.key] = info
            parsed = layout.parse_path(info.key)
            if isinstance(parsed, TraceMetadata):
                self._metadata.setdefault(parsed.folder, parsed)
            if isinstance(parsed, (TraceMetadata, layout.PythonStats)):
                self.others[info.key] = info

    def _note_items(self, infos: Iterable[FileInfo]) -> list[Item]:
        found = []
        for info in infos:
            known = self._known.get(info.key)
            if known is not None and (known.info.size, known.info.etag) == (info.size, info.etag):
                continue
            item = self._item(info)
            if item is not None:
                self._note(item)
                found.append(item)
        return self._without_strays(found)

    def _note(self, item: Item) -> None:
        """Add an item, or replace the one with its key."""
        key = item.info.key
        known = self._known.get(key)
        if known is not None:
            self._clusters.remove(known)
            if key not in self.strays:
                self._take_out(known)
        self._known[key] = item
        self._approximate.pop(key, None)
        if item.approximate:
            self._approximate[key] = item
        self._clusters.add(item)

    def _without_strays(self, found: list[Item]) -> list[Item]:
        """Separate the items with an impossible time in their name; return the readable ones of `found` and of before.

        The times of a job lie close together. One far-off file would make readers walk years of empty minutes, and
        hide new files from the next listing.
        """
        job = self._clusters.job()
        if not found or job is None:
            return []
        moved = [item for item in found if item.info.key not in job.items]
        back: list[Item] = []
        if job is not self._job or self._clusters.joined:
            new = {item.info.key for item in found}
            back = [item for key, item in job.items.items() if key in self.strays and key not in new]
            moved = [item for cluster in self._clusters if cluster is not job for item in cluster.items.values()]
            self.strays.clear()
            self._ordered = None
            self._job, self._clusters.joined = job, False
        for item in moved:
            reason = "in the future" if self._clusters.of(item).is_future else "far from the job's other files"
            self.strays[item.info.key] = f"named by a time {reason}"
        readable = [item for item in found if item.info.key in job.items]
        for item in readable:
            self.strays.pop(item.info.key, None)
        self._put_in(readable)
        return readable + back

    def _put_in(self, items: list[Item]) -> None:
        """Keep the reading order; a few new items are cheaper to insert than to sort with all others."""
        if self._ordered is None:
            return
        if len(items) > max(len(self._ordered) // 8, 1):
            self._ordered = None
            return
        for item in items:
            self._ordered.insert(bisect_left(self._ordered, item.order, key=_order), item)

    def _take_out(self, item: Item) -> None:
        if self._ordered is not None:
            del self._ordered[bisect_left(self._ordered, item.order, key=_order)]

    def _item(self, info: FileInfo) -> Item | None:
        parsed = layout.parse_path(info.key)
        if isinstance(parsed, SystemFile):
            return Item(info, parsed, parsed.at_us, parsed.node, "")
        if isinstance(parsed, TraceFile):
            return Item(info, parsed, parsed.at_us, intern(parsed.node), parsed.kind)
        if not isinstance(parsed, DetailedTrace):
            return None
        metadata = self._metadata.get(parsed.folder)
        if metadata is None:
            start_us = _hour_us(parsed.hour)
            if start_us is None:
                return None
            return Item(info, parsed, start_us, parsed.host, layout.DETAILED_TRACE, start_us, approximate=True)
        node = layout.shown_node(metadata.source)
        node = node if node != metadata.source else parsed.host
        return Item(info, parsed, metadata.end_us, node, layout.DETAILED_TRACE, metadata.start_us)


def _order(item: Item) -> Order:
    return item.order


def _hour_us(hour: str) -> int | None:
    try:
        return calendar.timegm(time.strptime(hour, "%Y%m%d%H")) * layout.SECOND_US
    except ValueError:
        return None
