"""The files of a job, and the new ones among them."""

from __future__ import annotations

import calendar
import os
import re
import time
from collections.abc import Iterable

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.layout import DetailedTrace, SystemFile, TraceFile, TraceMetadata
from sm_profiler.storage import FileInfo, Storage

TIMELINES = (
    layout.PYTHON_TIMELINE,
    layout.MODEL_TIMELINE,
    layout.DETAILED_TRACE,
    layout.HOROVOD_TIMELINE,
    layout.SMDATAPARALLEL_TIMELINE,
)
TRAILING_US = 5 * layout.MINUTE_US
_HOST = re.compile(r"algo-(\d{1,9})(?!\d)")
_CLOCKS_US = layout.MINUTE_US  # tolerated lead of the clock that names files over the clock that dates them
_DAY_US = 24 * 60 * layout.MINUTE_US
_FUTURE_US = _DAY_US  # tolerated lead of the clock that names files over the reader's
_FAR_US = 100 * _DAY_US  # jobs end after 28 days; files of one job are never further apart


def duration_us(variable: str, default: int) -> int:
    """Return a number of microseconds from the environment."""
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        return int(float(text))
    except (ValueError, OverflowError) as error:
        raise SourceError(f"{variable} is {text!r}, not a number of microseconds") from error


@attrs.frozen
class Item:
    """A file with data.

    Attributes:
        info: the file as listed.
        file: its parsed name.
        at_us: the time of its name, microseconds since the epoch.
        node, kind: as in EventColumns for traces; a system file has a node and the kind "".
        start_us: origin of the times of a trace that does not name one.
        approximate: `start_us` is an estimate.
    """

    info: FileInfo
    file: SystemFile | TraceFile | DetailedTrace
    at_us: int
    node: str
    kind: str
    start_us: int = 0
    approximate: bool = False

    @property
    def is_system(self) -> bool:
        """True for a file of system metrics."""
        return not self.kind

    @property
    def host(self) -> int:
        """Number of the host: 1 for `algo-1`; 0 for a name of another form."""
        match = _HOST.match(self.node)
        return int(match[1]) if match else 0

    @property
    def order(self) -> tuple[int, bool, int, str]:
        """Sort key: by minute, system metrics first."""
        return self.at_us // layout.MINUTE_US, not self.is_system, self.at_us, self.info.key

    @property
    def rank(self) -> int:
        """Position of its timeline among the others."""
        return TIMELINES.index(self.kind) if self.kind in TIMELINES else len(TIMELINES)


class Catalog:
    """The files of one profiler output.

    Attributes:
        items: the data files listed so far, by key.
        strays: data files that are not read because of the time in their name, by key, each with the reason.
        others: Python statistics and metadata files, by key.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.items: dict[str, Item] = {}
        self.strays: dict[str, str] = {}
        self._stray_items: dict[str, Item] = {}
        self.others: dict[str, FileInfo] = {}
        self._metadata: dict[str, TraceMetadata] = {}
        self._markers: dict[str, FileInfo] = {}
        self._latest = {layout.SYSTEM: 0, layout.FRAMEWORK: 0}
        self._latest_of_host: dict[int, int] = {}

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
            if _is_future([item]):
                continue  # files to come have earlier names
            part = layout.SYSTEM if item.is_system else layout.FRAMEWORK
            self._latest[part] = max(self._latest[part], item.at_us)
            self._latest_of_host[item.host] = max(self._latest_of_host.get(item.host, 0), item.at_us)
        return found + self._correct_times()

    def _correct_times(self) -> list[Item]:
        """Return the items whose start time was an estimate until their metadata file came."""
        guessed = [item for item in self.items.values() if item.approximate]
        found = [new for item in guessed if (new := self._item(item.info)) and not new.approximate]
        self.items.update((item.info.key, item) for item in found)
        return found

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
            known = self.items.get(info.key) or self._stray_items.get(info.key)
            if known is not None and (known.info.size, known.info.etag) == (info.size, info.etag):
                continue
            item = self._item(info)
            if item is not None:
                self.items[info.key] = item
                self._stray_items.pop(info.key, None)
                found.append(item)
        return self._without_strays(found)

    def _without_strays(self, found: list[Item]) -> list[Item]:
        """Separate the items with an impossible time in their name, of all items; return the readable ones of `found`.

        The times of a job lie close together. One far-off file would make readers walk years of empty minutes, and
        hide new files from the next listing.
        """
        if not found:
            return []
        everything = {**self.items, **self._stray_items}
        clusters = _clusters(everything.values())
        # A job of the future is read if it is all there is: the reader's clock may be wrong.
        job = max(clusters, key=lambda cluster: (not _is_future(cluster), len(cluster)))
        reasons: dict[str, str] = {}
        for cluster in clusters:
            if cluster is not job:
                reason = "in the future" if _is_future(cluster) else "far from the job's other files"
                reasons |= {item.info.key: f"named by a time {reason}" for item in cluster}
        back = [item for key, item in self._stray_items.items() if key not in reasons]
        self.strays = reasons
        self._stray_items = {key: everything[key] for key in reasons}
        self.items = {key: item for key, item in everything.items() if key not in reasons}
        return [item for item in found if item.info.key not in reasons] + back

    def _item(self, info: FileInfo) -> Item | None:
        parsed = layout.parse_path(info.key)
        if isinstance(parsed, SystemFile):
            return Item(info, parsed, parsed.at_us, parsed.node, "")
        if isinstance(parsed, TraceFile):
            return Item(info, parsed, parsed.at_us, parsed.node, parsed.kind)
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


def _is_future(cluster: list[Item]) -> bool:
    now_us = time.time() * layout.SECOND_US
    return all(item.at_us > max(now_us, item.info.mtime * layout.SECOND_US) + _FUTURE_US for item in cluster)


def _clusters(items: Iterable[Item]) -> list[list[Item]]:
    """Split items where their times are far apart; the latest cluster comes first."""
    clusters: list[list[Item]] = []
    for item in sorted(items, key=lambda item: -item.at_us):
        if not clusters or clusters[-1][-1].at_us - item.at_us > _FAR_US:
            clusters.append([])
        clusters[-1].append(item)
    return clusters


def _hour_us(hour: str) -> int | None:
    try:
        return calendar.timegm(time.strptime(hour, "%Y%m%d%H")) * layout.SECOND_US
    except ValueError:
        return None
