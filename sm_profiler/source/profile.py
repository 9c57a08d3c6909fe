"""One job's profiler output."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.assemble import event_columns, system_columns
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.formats.outcome import READ, REFUSED, Outcome
from sm_profiler.formats.system_reader import SystemRows
from sm_profiler.formats.trace_rows import TraceRows
from sm_profiler.source.catalog import Catalog, Item
from sm_profiler.source.parse import Parsed, parse_all
from sm_profiler.source.streams import Streams
from sm_profiler.source.wire import Rows
from sm_profiler.storage import FileInfo, Storage

SETTLED_S = 30.0  # a damaged file of a running job that changed within this time is looked at again


@attrs.frozen(eq=False)
class Batch:
    """What the files of one minute hold.

    Attributes:
        system: its system metrics.
        events: the events filed under it, that is those of files whose last event ended in it.
        minute_us: start of the minute, microseconds since the epoch.
    """

    system: SystemColumns
    events: EventColumns
    minute_us: int


@attrs.frozen
class FileQuality:
    """What became of a file.

    Attributes:
        path: below the profiler output.
        status: "read", "repaired" or "refused".
        lost: records that had to be dropped.
        reason: why, in words; "" where there is nothing to say.
    """

    path: str
    status: str
    lost: int
    reason: str


@attrs.frozen
class Options:
    """How a source reads.

    Attributes:
        strict: make every lost record an error.
        cache: keep a columnar copy for the next time, and use one that is there.
        memory_limit: bytes that reading may hold besides what it hands out; None: a share of the machine's memory.
        processes: how many processes parse; None: one a processor.
        progress: show a progress bar; None: for long reads on a terminal.
    """

    strict: bool = False
    cache: bool = True
    memory_limit: int | None = None
    processes: int | None = None
    progress: bool | None = None


class ProfileSource:
    """A profiler output to read from; `open_source` makes one."""

    def __init__(self, storage: Storage, options: Options | None = None) -> None:
        self.storage = storage
        self.options = options or Options()
        self._catalog = Catalog(storage)
        self._quality: dict[str, FileQuality] = {}
        self._metadata: dict[str, tuple[dict[str, Any], ...]] = {}
        self._pending: dict[str, Item] = {}
        self._delivered: set[str] = set()
        self._streams = Streams()
        self.refresh()

    @property
    def uri(self) -> str:
        """The folder or s3:// URI."""
        return self.storage.uri

    @property
    def finished(self) -> bool:
        """Whether the job's end marker stands and no file is later than it, as of the last refresh."""
        return self._catalog.finished

    @property
    def first_timestamp_us(self) -> int | None:
        """The earliest time a file is filed under (a system file: the start of its minute), microseconds; None: no file."""
        return min((item.at_us for item in self._catalog.items.values()), default=None)

    @property
    def last_timestamp_us(self) -> int | None:
        """The latest time that the files' names tell of (a system file: the end of its minute), microseconds."""
        ends = (item.at_us + layout.MINUTE_US * item.is_system for item in self._catalog.items.values())
        return max(ends, default=None)

    @property
    def files(self) -> list[Item]:
        """The data files found so far, in the order in which they are read."""
        return sorted(self._catalog.items.values(), key=lambda item: item.order)

    @property
    def other_files(self) -> list[FileInfo]:
        """Python statistics and metadata files found so far, by path."""
        return [self._catalog.others[key] for key in sorted(self._catalog.others)]

    def refresh(self) -> int:
        """Look for new files, late ones included; returns how many there are.

        Raises:
            SourceError: the folder or bucket cannot be listed.
        """
        found = {item.info.key: item for item in self._catalog.refresh()}
        new = {key: item for key, item in found.items() if key not in self._delivered}
        count = len(new.keys() - self._pending.keys())
        self._pending.update(new)
        return count

    def batches(self) -> Iterator[Batch]:
        """What `refresh` found and no earlier call has delivered, minute by minute, in time order.

        Raises:
            SourceError: a file cannot be fetched, or `strict` is set and records are lost.
        """
        items = sorted(self._pending.values(), key=lambda item: item.order)
        parsed = self._parsed(items)
        for minute, group in groupby(parsed, key=lambda each: each[0].at_us // layout.MINUTE_US):
            system: list[SystemRows] = []
            events: list[TraceRows] = []
            for item, rows, outcome in group:
                if not self._is_settled(item, outcome):
                    continue
                self._pending.pop(item.info.key, None)
                self._delivered.add(item.info.key)
                for part in self._take(item, rows, outcome, self._streams):
                    if isinstance(part, SystemRows):
                        system.append(part)
                    else:
                        events.append(part)
            if system or events:
                yield Batch(system_columns(system), event_columns(events), minute * layout.MINUTE_US)

    def system(self) -> SystemColumns:
        """All system metrics."""
        return system_columns([rows for rows in self.rows(system=True) if isinstance(rows, SystemRows)])

    def events(self) -> EventColumns:
        """All trace events."""
        return event_columns([rows for rows in self.rows(system=False) if isinstance(rows, TraceRows)])

    def rows(self, *, system: bool, wanted: Callable[[Item], bool] | None = None) -> Iterator[Rows]:
        """The rows of all system files or of all traces, file by file in time order, whether delivered or not.

        Args:
            system: system metrics, or traces.
            wanted: which files to read; None: all of them.
        """
        streams = Streams()
        items = [item for item in self.files if item.is_system == system and (wanted is None or wanted(item))]
        for item, rows, outcome in self._parsed(items):
            yield from self._take(item, rows, outcome, streams)

    def quality(self) -> list[FileQuality]:
        """What became of the files read so far, by path."""
        return [self._quality[path] for path in sorted(self._quality)]

    def metadata(self) -> list[dict[str, Any]]:
        """Our own metadata records of the trace files read so far, each with the `node` that wrote it."""
        return [record for path in sorted(self._metadata) for record in self._metadata[path]]

    def _parsed(self, items: Iterable[Item]) -> Iterator[Parsed]:
        return parse_all(self.storage, items, processes=self.options.processes)

    def _is_settled(self, item: Item, outcome: Outcome) -> bool:
        """Whether a file is taken as it is: a damaged one may still be on its way while the job runs."""
        return outcome.status == READ or self.finished or time.time() - item.info.mtime > SETTLED_S

    def _take(self, item: Item, rows: Rows | None, outcome: Outcome, streams: Streams) -> list[Rows]:
        """The rows of a file, those joined with earlier files first; notes what became of it."""
        taken: list[Rows] = [] if rows is None else [rows]
        if isinstance(rows, TraceRows):
            self._metadata[item.info.key] = rows.metadata
            joined, outcome = streams.take(rows, outcome)
            taken = list(joined)
        self._quality[item.info.key] = FileQuality(item.info.key, outcome.status, outcome.lost, outcome.reason)
        if self.options.strict and (outcome.lost or outcome.status == REFUSED):
            raise SourceError(f"{item.info.key}: {outcome.lost} records lost ({outcome.reason})")
        return taken
