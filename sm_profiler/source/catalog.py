"""Which files a job has, and which of them are new."""

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
MAX_AHEAD_US = 24 * 60 * layout.MINUTE_US  # a clock that is ahead of this one by more is not believed
_HOST = re.compile(r"algo-(\d{1,9})(?!\d)")
_CLOCKS_US = layout.MINUTE_US  # how far the clock that names files may be ahead of the one that stamps them


def duration_us(variable: str, default: int) -> int:
    """A number of microseconds from the environment."""
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
        info: the file as it was listed.
        file: what its name tells.
        at_us: the time it is filed under, microseconds since the epoch.
        node, kind: of traces as in EventColumns; the node alone of system files, whose kind is "".
        start_us: of traces: what times count from where the file does not say.
        approximate: whether `start_us` is a guess.
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
        """Whether it holds system metrics."""
        return not self.kind

    @property
    def host(self) -> int:
        """The host's number: 1 for `algo-1`; 0 for one with another kind of name."""
        match = _HOST.match(self.node)
        return int(match[1]) if match else 0

    @property
    def order(self) -> tuple[int, bool, int, str]:
        """Files are delivered by minute, system metrics first."""
        return self.at_us // layout.MINUTE_US, not self.is_system, self.at_us, self.info.key

    @property
    def rank(self) -> int:
        """The place of its timeline among the others."""
        return TIMELINES.index(self.kind) if self.kind in TIMELINES else len(TIMELINES)


class Catalog:
    """The files of one profiler output.

    Attributes:
        items: every data file seen and not yet forgotten, by key.
        others: Python statistics and metadata files, by key.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.items: dict[str, Item] = {}
        self.others: dict[str, FileInfo] = {}
        self._metadata: dict[str, TraceMetadata] = {}
        self._markers: dict[str, FileInfo] = {}
        self._latest = {layout.SYSTEM: 0, layout.FRAMEWORK: 0}
        self._latest_of_host: dict[int, int] = {}

    def refresh(self) -> list[Item]:
        """List what may have come since the last time; returns the items that are new or whose content changed."""
        was_finished = self.finished
        found = self._list(everything=False)
        if self.finished and not was_finished:
            # After the last listing nothing more is looked for, so this one leaves nothing out.
            found += self._list(everything=True)
        return found

    @property
    def finished(self) -> bool:
        """Whether the job has ended: a marker stands, and no file of the host that writes markers is named by a later time.

        That is the first host.  Later files of it are a run that was taken up again; those of others are only late.
        """
        if not self._markers:
            return False
        marked_us = max(info.mtime for info in self._markers.values()) * layout.SECOND_US
        latest_us = self._latest_of_host[min(self._latest_of_host)] if self._latest_of_host else 0
        return latest_us <= marked_us + _CLOCKS_US

    def _list(self, *, everything: bool) -> list[Item]:
        trailing = duration_us("TRAILING_DURATION_MICROSECONDS", TRAILING_US)
        found: list[Item] = []
        for part, folder in ((layout.SYSTEM, layout.SYSTEM_FOLDER), (layout.FRAMEWORK, layout.TRACE_FOLDER)):
            from_us = self._latest[part] - trailing
            after = None
            if from_us > 0 and not everything:
                number = from_us if part == layout.FRAMEWORK else from_us // layout.SECOND_US
                after = f"{folder}/{layout.hour_folder(from_us)}/{number}"
            infos = list(self.storage.list(part + "/", after))
            self._note_others(infos)
            found += self._note_items(part, infos)
        return found + self._correct_times()

    def _correct_times(self) -> list[Item]:
        """The items whose start time was a guess until their metadata file came."""
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

    def _note_items(self, part: str, infos: Iterable[FileInfo]) -> list[Item]:
        found = []
        for info in infos:
            known = self.items.get(info.key)
            if known is not None and (known.info.size, known.info.etag) == (info.size, info.etag):
                continue
            item = self._item(info)
            if item is not None:
                self.items[info.key] = item
                found.append(item)
                if item.at_us > max(time.time(), info.mtime) * layout.SECOND_US + MAX_AHEAD_US:
                    continue  # the name's time is wrong: files to come have earlier ones
                self._latest[part] = max(self._latest[part], item.at_us)
                host = item.host
                self._latest_of_host[host] = max(self._latest_of_host.get(host, 0), item.at_us)
        return found

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
            return Item(info, parsed, start_us, parsed.host, layout.DETAILED_TRACE, start_us, approximate=True)
        node = layout.shown_node(metadata.source)
        node = node if node != metadata.source else parsed.host
        return Item(info, parsed, metadata.end_us, node, layout.DETAILED_TRACE, metadata.start_us)


def _hour_us(hour: str) -> int:
    try:
        return calendar.timegm(time.strptime(hour, "%Y%m%d%H")) * layout.SECOND_US
    except ValueError:
        return 0
