"""One job's profiler output."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.errors import SourceError
from sm_profiler.executors import Meter
from sm_profiler.formats import layout
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.formats.outcome import READ, REFUSED, Outcome
from sm_profiler.formats.trace_records import Streams
from sm_profiler.monitor.run_state import RunState, read_state
from sm_profiler.source.cache import WORTH_BYTES, Cache, Copy, Reading
from sm_profiler.source.catalog import Catalog
from sm_profiler.source.item_table import Item, OrderedItems
from sm_profiler.source.open_files import LeftStorage
from sm_profiler.source.parse import AHEAD_BYTES, DENIED, ColumnBuilder, FileRows, Parsed, parse_all
from sm_profiler.storage import FileInfo, LocalStorage, Storage

KEEP_BYTES = 192 << 20  # a job read by the minute is copied up to this size; its columns take a third of that in memory
_PENDING, _DELIVERED, _READ = 1, 2, 4  # flags of files
SETTLED_S = 30.0  # a damaged file of a running job that changed within this time is read again later


def reading_meter(items: Sequence[Item], *, show: bool | None) -> Meter:
    """Return the line of progress; each file that is read adds its `megabytes`."""
    return Meter(sum(map(megabytes, items)), noun="MB read", show=show)


def megabytes(item: Item) -> float:
    return item.info.size / 1e6


@attrs.frozen(eq=False)
class Batch:
    """System metrics and events of the files of one minute.

    Attributes:
        events: the events of files whose last event ended in it.
        minute_us: start of the minute, microseconds since the epoch.
    """

    system: SystemColumns
    events: EventColumns
    minute_us: int


@attrs.frozen
class FileQuality:
    """Outcome of reading a file.

    Attributes:
        path: below the profiler output.
        status: "read", "repaired" or "refused".
        lost: number of dropped records.
        reason: explanation as text; "" for a file without faults.
    """

    path: str
    status: str
    lost: int
    reason: str


@attrs.frozen
class Options:
    """Options of reading.

    Attributes:
        strict: raise an error for every lost record.
        cache: keep a columnar copy for the next time, and use an existing one.
        memory_limit: bytes of files and rows in flight; None: 64 MB of files.
        processes: number of parsing processes; None: one per processor.
        progress: show a line of progress; None: for long reads on a terminal.
    """

    strict: bool = False
    cache: bool = True
    memory_limit: int | None = None
    processes: int | None = None
    progress: bool | None = None


class ProfileSource:
    """The profiler output of one job; `open_source` opens it.

    Attributes:
        description: the response of DescribeTrainingJob if the source was opened by the name of a training job.
        parse: parses files, as `parse_all` does; a caller that has workers sets another function.
    """

    description: dict[str, Any] | None = None

    def __init__(self, storage: Storage, options: Options | None = None) -> None:
        self.storage = storage
        self.options = options or Options()
        self.parse: Callable[..., Generator[Parsed, None, None]] = parse_all
        self._catalog = Catalog(storage)
        self._quality: dict[str, Outcome] = {}  # of files with faults
        self._metadata: dict[str, tuple[dict[str, Any], ...]] = {}
        self._streams = Streams()
        self._columnar: Callable[..., Iterator[FileRows]] | None = getattr(storage, "pieces", None)
        self._cache = Cache.of(storage.uri, wanted=self.options.cache and self._columnar is None)
        limit = self.options.memory_limit
        self._ahead_bytes = AHEAD_BYTES if limit is None else max(limit // 4, 1 << 20)
        self._keep_bytes = KEEP_BYTES if limit is None else limit
        self.refresh()

    @property
    def uri(self) -> str:
        """The folder or s3:// URI."""
        return self.storage.uri

    @property
    def origin(self) -> str:
        """The folder or s3:// URI that the data was recorded to; differs from `uri` for a profile in Parquet."""
        return str(getattr(self.storage, "origin", self.uri))

    @property
    def finished(self) -> bool:
        """True if the job has an end marker and no later file, as of the last refresh."""
        return self._catalog.finished

    @property
    def run(self) -> RunState | None:
        """State of the `sm-profiler run` that wrote this folder; None if there was none, or the profile was copied elsewhere."""
        return read_state(self.storage.root) if isinstance(self.storage, (LocalStorage, LeftStorage)) else None

    @property
    def left_open(self) -> bool:
        """True if files were left open by processes that are gone."""
        return isinstance(self.storage, LeftStorage) and self.storage.left_open

    @property
    def first_timestamp_us(self) -> int | None:
        """Earliest time in the files' names (start of the minute of a system file), microseconds; None without files."""
        times = self._catalog.ordered.at_us
        return int(times.min()) if len(times) else None

    @property
    def last_timestamp_us(self) -> int | None:
        """Latest time in the files' names (end of the minute of a system file), microseconds; None without files."""
        ends = self._catalog.ordered.at_us + layout.MINUTE_US * self._catalog.ordered.is_system
        return int(ends.max()) if len(ends) else None

    @property
    def files(self) -> OrderedItems:
        """The data files found so far, in reading order."""
        return self._catalog.ordered

    @property
    def other_files(self) -> list[FileInfo]:
        """Python statistics and metadata files found so far, by path."""
        return [self._catalog.others[key] for key in sorted(self._catalog.others)]

    @property
    def strays(self) -> list[str]:
        """The data files found so far that are not read because of the time in their name."""
        return list(self._catalog.strays)

    @property
    def beside(self) -> list[FileInfo]:
        """The files found so far that are no data, or are not read because of the time in their name, by path."""
        return self._catalog.beside()

    def refresh(self) -> int:
        """List new files, late ones included, and return their number.

        Raises:
            SourceError: the folder or bucket cannot be listed.
        """
        fresh = self._catalog.refresh().numbers
        fresh = fresh[self._flags[fresh] & (_DELIVERED | _PENDING) == 0]
        self._flags[fresh] |= _PENDING
        for key in self._catalog.strays:
            self._mark(key, remove=_PENDING)
        return len(fresh)

    @property
    def _flags(self) -> NDArray[np.uint8]:
        """State of each file, by its number: _PENDING, _DELIVERED, _READ."""
        return self._catalog.table.flags

    def _with(self, flag: int) -> OrderedItems:
        return self._catalog.table.ordered(np.flatnonzero(self._flags & flag))

    def _mark(self, key: str, add: int = 0, remove: int = 0) -> bool:
        """Change the flags of a file; return whether there is one."""
        number = self._catalog.table.number_of(key)
        if number is not None:
            self._flags[number] = self._flags[number] & ~np.uint8(remove) | add
        return number is not None

    def batches(self, *, unsettled: bool = False) -> Iterator[Batch]:
        """Yield the data that `refresh` found and no earlier call has delivered, minute by minute, in time order.

        Args:
            unsettled: include damaged files of a running job that changed within the last seconds. They may still be
                written, so a caller that follows the job leaves them for later.

        Raises:
            SourceError: a file cannot be fetched, none may be read, or `strict` is set and records are lost.
        """
        self._record_strays()
        items = self._with(_PENDING)
        is_first = not (self._flags & _DELIVERED).any()
        copies = {system: self._copy(system=system) for system in (True, False)} if is_first else {}
        if copied := copies.get(False):
            self._streams = copied.streams
        kept: list[FileRows] | None = [] if is_first and self._will_keep(items, copies) else None
        pieces = self._pieces(items, copies)
        for minute, group in groupby(pieces, key=lambda each: each.item.at_us // layout.MINUTE_US):
            system, events = ColumnBuilder(is_system=True), ColumnBuilder(is_system=False)
            for piece in group:
                if not (unsettled or self._is_settled(piece)):
                    continue
                self._mark(piece.item.info.key, add=_DELIVERED, remove=_PENDING)
                joined = self._join(piece, self._streams)
                (system if piece.item.is_system else events).add(joined)
                if kept is not None:
                    kept.append(joined)
            if system or events:
                yield Batch(system.columns(), events.columns(), minute * layout.MINUTE_US)
        self._record_strays()  # and what has turned out to be unreadable
        self._check_access(items)
        if kept:
            for is_system in (True, False):
                own = sorted(
                    (each for each in kept if each.item.is_system == is_system), key=lambda each: each.item.rank
                )
                gathered = ColumnBuilder(is_system=is_system)
                for piece in own:
                    gathered.add(piece)
                self._save([piece.reading for piece in own], self._streams, gathered.columns())

    def system(self) -> SystemColumns:
        """All system metrics."""
        columns: SystemColumns = self._all(system=True)
        return columns

    def events(self) -> EventColumns:
        """All trace events, timeline by timeline (the hook's first), each in the order of its files."""
        columns: EventColumns = self._all(system=False)
        return columns

    def quality(self) -> list[FileQuality]:
        """Outcomes of the files read so far, by path."""
        found = self._faults()
        found += [FileQuality(item.info.key, READ, 0, "") for item in self._with(_READ)]
        return sorted(found, key=lambda each: each.path)

    def faults(self) -> tuple[list[FileQuality], int]:
        """Outcomes of the files with faults, and the number of files that were read completely."""
        return self._faults(), int(np.count_nonzero(self._flags & _READ))

    def _faults(self) -> list[FileQuality]:
        return [FileQuality(path, each.status, each.lost, each.reason) for path, each in self._quality.items()]

    def metadata(self) -> list[dict[str, Any]]:
        """sm-profiler's own metadata records of the trace files read so far, each with the `node` that wrote it."""
        return [record for path in sorted(self._metadata) for record in self._metadata[path]]

    def rows_of(self, items: Sequence[Item]) -> Iterator[FileRows]:
        """Yield the rows of some files, without the events that began in earlier files, and without an account of them."""
        if self._columnar is not None:
            yield from self._columnar(items)
            return
        for parsed in parse_all(self.storage, items, processes=1):
            yield FileRows.parsed(*parsed)

    def metadata_by_file(self) -> dict[str, tuple[dict[str, Any], ...]]:
        """sm-profiler's own metadata records by the path of their file."""
        return dict(self._metadata)

    @property
    def joins_failed(self) -> bool:
        """True if events had no begin in the files read so far, or too many no end."""
        return self._streams.failed

    def adopt(self, quality: Iterable[FileQuality], metadata: Mapping[str, tuple[dict[str, Any], ...]]) -> None:
        """Take over the account of files that other processes have read for this source.

        Raises:
            SourceError: none may be read, or `strict` is set and records are lost.
        """
        self._record_strays()
        for each in quality:
            self._mark(each.path, add=_DELIVERED, remove=_PENDING)
            self._record_outcome(each.path, Outcome(each.status, each.lost, each.reason))
            if self.options.strict and (each.lost or each.status == REFUSED):
                raise SourceError(f"{each.path}: {each.lost} records lost ({each.reason})")
        self._metadata.update(metadata)
        self._check_access(self.files)

    def adopt_all(self, faults: Iterable[FileQuality], metadata: Mapping[str, tuple[dict[str, Any], ...]]) -> None:
        """Take over the account of all files, which have been read before.

        Args:
            metadata: as of `metadata_by_file`.

        Raises:
            SourceError: none may be read, or `strict` is set and records are lost.
        """
        self._flags[self._catalog.ordered.numbers] = _READ | _DELIVERED
        self.adopt(faults, metadata)

    def rewind(self) -> None:
        """Forget what has been read: the next call of `batches` yields everything."""
        self._quality, self._metadata = {}, {}
        self._flags[:] = 0
        self._flags[self._catalog.ordered.numbers] = _PENDING
        self._streams = Streams()

    def _record_outcome(self, key: str, outcome: Outcome) -> None:
        is_whole = outcome == Outcome()
        if self._mark(key, add=_READ if is_whole else 0, remove=_READ) and is_whole:
            self._quality.pop(key, None)
        else:
            self._quality[key] = outcome

    def _all(self, *, system: bool) -> Any:
        items = [item for item in self.files if item.is_system == system]
        items.sort(key=lambda item: item.rank)
        self._record_strays()
        copy = self._copy(system=system)
        streams, readings = copy.streams if copy else Streams(), list[Reading]()
        count_rows = getattr(self.storage, "count_rows", None)
        rows = None if count_rows is None else count_rows(system=system)
        size = 0 if rows is not None else sum(item.info.size for item in items)
        gathered = ColumnBuilder(is_system=system, size=size, rows=rows)
        for piece in self._pieces(items, {system: copy}):
            joined = self._join(piece, streams)
            gathered.add(joined)
            readings.append(joined.reading)
        self._record_strays()  # and what has turned out to be unreadable
        self._check_access(items)
        columns = gathered.columns()
        if copy is None or len(copy.readings) < len(items):
            self._save(readings, streams, columns)
        return columns

    def _will_keep(self, items: OrderedItems, copies: dict[bool, Copy | None]) -> bool:
        """Return whether reading by the minute leaves a copy: of a whole, finished job that fits into memory and has none."""
        whole = not any(copies.values()) and self.finished
        return self._cache is not None and whole and int(items.sizes.sum()) <= self._keep_bytes

    def _save(self, readings: Sequence[Reading], streams: Streams, columns: Any) -> None:
        """Write the copy of all files of a kind, in the order of `_all`."""
        if self._cache is not None and readings and self._is_worth(reading.item for reading in readings):
            self._cache.save(Copy(columns, readings, streams), system=readings[0].item.is_system)

    def _is_worth(self, items: Iterable[Item]) -> bool:
        return sum(item.info.size for item in items) >= WORTH_BYTES

    def _copy(self, *, system: bool) -> Copy | None:
        if self._cache is None:
            return None
        items = [item for item in self.files if item.is_system == system]
        return self._cache.load(items, system=system) if self._is_worth(items) else None

    def _pieces(self, items: Sequence[Item], copies: dict[bool, Copy | None]) -> Iterator[FileRows]:
        """Yield the rows of files in their order, from the copies if they are in one, else parsed."""
        if self._columnar is not None:
            with reading_meter(items, show=self.options.progress) as meter:
                for stored in self._columnar(items, by_minute=isinstance(items, OrderedItems)):
                    yield stored
                    meter.add(megabytes(stored.item))
            return
        ready: dict[str, FileRows] = {}
        for copy in filter(None, copies.values()):
            at = 0
            for reading in copy.readings:
                ready[reading.item.info.key] = FileRows.copied(copy, reading, at)
                at += reading.rows
        parsed = self.parse(
            self.storage,
            [item for item in items if item.info.key not in ready] if ready else items,
            processes=self.options.processes,
            ahead_bytes=self._ahead_bytes,
        )
        with closing(parsed) as fresh, reading_meter(items, show=self.options.progress) as meter:
            for item in items:
                piece = ready.pop(item.info.key, None)
                yield piece if piece is not None else FileRows.parsed(*next(fresh))
                meter.add(megabytes(item))

    def _record_strays(self) -> None:
        unreadable: dict[str, str] = getattr(self.storage, "unreadable", {})
        for key, reason in (self._catalog.strays | unreadable).items():
            number = self._catalog.table.number_of(key)
            if number is None or not self._flags[number] & _READ:
                self._quality.setdefault(key, Outcome(REFUSED, 0, reason))
            if self.options.strict:
                raise SourceError(f"{key}: not read ({reason})")

    def _check_access(self, items: Sequence[Item]) -> None:
        """Raise an error if none of the files may be read: these credentials are wrong, rather than a file's permissions."""
        faults = (self._quality.get(item.info.key) for item in items)
        if len(items) and all(fault is not None and fault.reason == DENIED for fault in faults):
            raise SourceError(f"{self.uri}: access denied to each of its {len(items)} files, which can only be listed")

    def _is_settled(self, piece: FileRows) -> bool:
        """Return whether a file is complete: while the job runs, a damaged one may still be in transfer."""
        return piece.outcome.status == READ or self.finished or time.time() - piece.item.info.mtime > SETTLED_S

    def _join(self, piece: FileRows, streams: Streams) -> FileRows:
        """Join events that span files, and record the outcome of the file."""
        piece = piece.joined(streams)
        key, outcome = piece.item.info.key, piece.outcome
        if piece.metadata:
            self._metadata[key] = piece.metadata
        self._record_outcome(key, outcome)
        if self.options.strict and (outcome.lost or outcome.status == REFUSED):
            raise SourceError(f"{key}: {outcome.lost} records lost ({outcome.reason})")
        return piece
