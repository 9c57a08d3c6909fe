"""The files of a job, and the new ones among them."""

from __future__ import annotations

import calendar
import time
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from sm_profiler.formats import layout
from sm_profiler.formats.columns import Ints, Mask
from sm_profiler.formats.layout import DetailedTrace, SystemFile, TraceFile, TraceMetadata
from sm_profiler.settings import TRAILING
from sm_profiler.source.item_table import Item, ItemTable, OrderedItems
from sm_profiler.storage import FileInfo, Storage

_DAY_US = 24 * 60 * layout.MINUTE_US
_FUTURE_US = _DAY_US  # tolerated lead of the clock that names files over the reader's
_FAR_US = 100 * _DAY_US  # jobs end after 28 days; files of one job are never further apart

_SURELY_S = 3600.0  # an end marker of so long before a listing, by clocks that differ: all files were there
_CLOCKS_US = layout.MINUTE_US  # tolerated lead of the clock that names files over the clock that dates them


@attrs.frozen
class _Cluster:
    """Files whose times lie close together: their number, and the range of their times."""

    count: int
    first_us: int
    last_us: int
    is_future: bool

    def includes(self, at_us: Ints, far_us: int = 0) -> Mask:
        """Return whether times are in the range, or less than so far from it."""
        found: Mask = (at_us >= self.first_us - far_us) & (at_us <= self.last_us + far_us)
        return found


def _clusters(table: ItemTable) -> list[_Cluster]:
    """Return the clusters of all files in the order of time."""
    at_us = table.column("at_us")
    order = np.argsort(at_us, kind="stable")
    times = at_us[order]
    begins = np.flatnonzero(np.diff(times, prepend=times[:1] - 2 * _FAR_US) > _FAR_US)
    leads = np.minimum.reduceat(times - table.column("mtime")[order] * layout.SECOND_US, begins)
    future_us = time.time() * layout.SECOND_US + _FUTURE_US
    return [
        _Cluster(
            end - begin, int(times[begin]), int(times[end - 1]), bool(times[begin] > future_us and lead > _FUTURE_US)
        )
        for begin, end, lead in zip(begins.tolist(), [*begins[1:].tolist(), len(times)], leads.tolist(), strict=True)
    ]


def are_future(items: OrderedItems) -> Mask:
    """Return whether the time in each item's name is in the future, by this machine's clock and by that of the storage."""
    now_us = time.time() * layout.SECOND_US
    found: Mask = items.at_us > np.maximum(now_us, items.mtimes * layout.SECOND_US) + _FUTURE_US
    return found


class Catalog:
    """The files of one profiler output.

    Attributes:
        table: the data files listed so far, those that are not read too.
        strays: data files that are not read because of the time in their name, by key, each with the reason.
        others: Python statistics and metadata files, by key.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.table = ItemTable()
        self.strays: dict[str, str] = {}
        self._job: _Cluster | None = None
        self._approximate: set[int] = set()  # numbers of files whose times are an estimate
        self.others: dict[str, FileInfo] = {}
        self._metadata: dict[str, dict[str, TraceMetadata]] = {}  # folder → process → the latest
        self._markers: dict[str, FileInfo] = {}
        self._latest = {layout.SYSTEM: 0, layout.FRAMEWORK: 0}
        self._latest_of_host: dict[int, int] = {}
        self._is_kept = False  # whether the last listing was one of a moment

    @property
    def ordered(self) -> OrderedItems:
        """The data files that are read, in reading order."""
        return self.table.ordered(self._readable())

    def _readable(self) -> Ints:
        at_us = self.table.column("at_us")
        return np.flatnonzero(self._job.includes(at_us)) if self._job else np.empty(0, np.int64)

    def beside(self) -> list[FileInfo]:
        """Return the files that are not read as data, by key."""
        strays = [item.info for key in self.strays if (item := self.table.find(key))]
        found = self.others | self._markers | {info.key: info for info in strays}
        return [found[key] for key in sorted(found)]

    def refresh(self) -> OrderedItems:
        """List files that may be new since the last call; return the items that are new or have changed."""
        was_finished, started = self.finished, time.time()
        listed_all = not any(self._latest.values())
        found = self._list(everything=False)
        if not self.finished or was_finished:
            return self.table.ordered(found)
        if not (listed_all and (self._is_kept or self._marked_us < (started - _SURELY_S) * 1e6)):
            # This is the last listing, so it leaves nothing out: files may have come while the first was under way.
            found = np.union1d(found, self._list(everything=True))
        return self.table.ordered(found)

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

    def _list(self, *, everything: bool) -> Ints:
        """List files; return the numbers of those that are new, have changed, or are no strays any more."""
        trailing = TRAILING.read()
        timeless = list[tuple[FileInfo, DetailedTrace]]()
        is_first = not len(self.table)
        kept = self._kept() if is_first else None
        self._is_kept = kept is not None
        known, changed = len(self.table) if kept is None else 0, list[int]()
        for part, folder in ((layout.SYSTEM, layout.SYSTEM_FOLDER), (layout.FRAMEWORK, layout.TRACE_FOLDER)):
            from_us = self._latest[part] - trailing
            after = None
            if from_us > 0 and not everything:
                number = from_us if part == layout.FRAMEWORK else from_us // layout.SECOND_US
                after = f"{folder}/{layout.hour_folder(from_us)}/{number}"
            for info in self.storage.list(part + "/", after) if kept is None else kept.beside_in(part + "/"):
                parsed = layout.parse_path(info.key)
                self._record_other(info, parsed)
                if isinstance(parsed, DetailedTrace):
                    timeless.append((info, parsed))  # its times are in another file, which may come later
                elif isinstance(parsed, (SystemFile, TraceFile)):
                    found = None if is_first else self.table.number_of(info.key, parsed)
                    if found is None:
                        self.table.add(info, parsed)
                    elif self._has_changed(found, info):
                        self.table.change(found, info, parsed)
                        changed.append(found)
        if is_first:
            self.table = self.table.without_doubles()
        changed += self._add_detailed(timeless)
        numbers = np.union1d(np.arange(known, len(self.table)), np.asarray(changed, np.int64))
        readable = self._without_strays(numbers)
        self._record_latest(self.table.ordered(readable))
        return readable

    def _has_changed(self, number: int, info: FileInfo) -> bool:
        before = self.table.item(number).info
        return (before.size, before.etag) != (info.size, info.etag)

    def _add_detailed(self, found: Sequence[tuple[FileInfo, DetailedTrace]]) -> list[int]:
        """Add detailed traces; return the numbers of the known ones that have changed, or whose times are no estimate any more."""
        changed = []
        for info, parsed in found:
            number = self.table.number_of(info.key)
            if number is None or self._has_changed(number, info):
                changed += self._set_detailed(number, info, parsed)
        for number in sorted(self._approximate):
            item = self.table.item(number)
            if self._metadata_of(item.file) is not None:
                changed += self._set_detailed(number, item.info, item.file)
        return changed

    def _set_detailed(self, number: int | None, info: FileInfo, parsed: DetailedTrace) -> list[int]:
        """Add or change a detailed trace; return its number, unless the hour in its name is none."""
        item = self._detailed(info, parsed)
        if item is None:
            return []
        if number is None:
            number = self.table.add_object(item)
        else:
            self.table.change_object(number, item)
        (self._approximate.add if item.approximate else self._approximate.discard)(number)
        return [number]

    def _kept(self) -> Any:
        """Return the list of files that is kept with a profile in Parquet, if all of its times are those of one job."""
        contents = getattr(self.storage, "contents", None)
        if contents is None or not len(contents.items) or len(_clusters(contents.items)) > 1:
            return None
        self.table = contents.items.copy()
        return contents

    def _record_latest(self, items: OrderedItems) -> None:
        """Record the latest times: files to come have no earlier names than the trailing ones."""
        items = items.chosen(~are_future(items))
        systems, at_us, hosts = items.is_system, items.at_us, items.hosts
        for part, chosen in ((layout.SYSTEM, systems), (layout.FRAMEWORK, ~systems)):
            self._latest[part] = max(self._latest[part], int(at_us[chosen].max(initial=0)))
        for host in np.unique(hosts).tolist():
            self._latest_of_host[host] = max(self._latest_of_host.get(host, 0), int(at_us[hosts == host].max()))

    def _record_other(self, info: FileInfo, parsed: layout.Parsed | None) -> None:
        if info.key in layout.END_MARKERS:
            self._markers[info.key] = info
        if isinstance(parsed, TraceMetadata):
            same = self._metadata.setdefault(parsed.folder, {})
            if parsed.source not in same or same[parsed.source].end_us < parsed.end_us:
                same[parsed.source] = parsed  # a job that was resumed has written its trace again
        if isinstance(parsed, (TraceMetadata, layout.PythonStats)):
            self.others[info.key] = info

    def _without_strays(self, found: Ints) -> Ints:
        """Separate the files with an impossible time in their name; return the readable ones of `found` and of before.

        The times of a job lie close together. One far-off file would make readers walk years of empty minutes, and
        hide new files from the next listing.
        """
        if not len(found):
            return found
        before, at_us = self._job, self.table.column("at_us")
        if before is not None and not self.strays and before.includes(at_us[found], _FAR_US).all():
            times = at_us[found]  # the known files need not be sorted again
            first_us, last_us = min(before.first_us, int(times.min())), max(before.last_us, int(times.max()))
            self._job = _Cluster(len(at_us), first_us, last_us, is_future=False)
            return found
        clusters = _clusters(self.table)
        # The largest, or of several the latest; one of the future only if it is all there is: the reader's clock may be wrong.
        job = self._job = max(reversed(clusters), key=lambda each: (not each.is_future, each.count))
        was_stray, self.strays = self.strays, {}
        for cluster in clusters:
            reason = "in the future" if cluster.is_future else "far from the job's other files"
            if cluster is not job:
                numbers = np.flatnonzero(cluster.includes(at_us))
                self.strays |= {item.info.key: f"named by a time {reason}" for item in self.table.items(numbers)}
        back = [self.table.number_of(key) for key in was_stray if key not in self.strays]
        return np.union1d(found[job.includes(at_us[found])], np.asarray(back, np.int64))

    def _detailed(self, info: FileInfo, parsed: DetailedTrace) -> Item | None:
        metadata = self._metadata_of(parsed)
        if metadata is None:
            start_us = _hour_us(parsed.hour)
            if start_us is None:
                return None
            return Item(info, start_us, parsed.host, layout.DETAILED_TRACE, start_us, approximate=True)
        node = layout.shown_node(metadata.source)
        node = node if node != metadata.source else parsed.host
        return Item(info, metadata.end_us, node, layout.DETAILED_TRACE, metadata.start_us)

    def _metadata_of(self, trace: DetailedTrace) -> TraceMetadata | None:
        """Return the metadata of a trace, if it is listed yet: of its process, or all there is if a machine is its name."""
        found = self._metadata.get(trace.folder, {})
        if layout.shown_node(trace.host) != trace.host:
            return found.get(trace.host)
        return next(iter(found.values()), None)


def _hour_us(hour: str) -> int | None:
    try:
        return calendar.timegm(time.strptime(hour, "%Y%m%d%H")) * layout.SECOND_US
    except ValueError:
        return None
