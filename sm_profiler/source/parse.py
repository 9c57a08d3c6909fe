"""Files to rows, in this process or, for large amounts of data, in several; rows of files to columns."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import closing, suppress
from typing import Any

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from sm_profiler.errors import SourceError
from sm_profiler.executors import Remote
from sm_profiler.executors.pools import LocalExecutor
from sm_profiler.formats.columns import Category, EventColumns, Numbering, Packed, SystemColumns, gather
from sm_profiler.formats.outcome import MAX_FILE_BYTES, REFUSED, Outcome
from sm_profiler.formats.system_reader import SystemRows, read_system
from sm_profiler.formats.trace_reader import read_trace
from sm_profiler.formats.trace_records import Streams
from sm_profiler.formats.trace_rows import EventAssembler, LooseEnd, OpenEvent, SystemAssembler, TraceRows
from sm_profiler.limits import memory_total
from sm_profiler.processes import processors
from sm_profiler.source.cache import Copy, Reading
from sm_profiler.source.item_table import Item
from sm_profiler.storage import AccessDeniedError, LocalStorage, MissingFileError, Storage, open_storage, read_all
from sm_profiler.storage.base import UnreadableFileError

LEAST_BYTES = 2 << 30  # assumed if the system cannot answer
_FILE_SHARE = 4  # a file is held once by its reader and once by the process that parses it, besides its rows

Rows = SystemRows | TraceRows

DENIED = "access denied"  # reason of a refused file
WORTH_BYTES = 32 << 20  # less than this is parsed faster than a process starts
AHEAD_BYTES = 64 << 20

Parsed = tuple[Item, Rows | None, Outcome]

_MOST = 1 << 26  # rows to expect at first: a damaged file may promise any number
_Codes = NDArray[np.int32]
_TOGETHER = 1 << 16  # rows that are appended at once


def machine_bytes() -> int:
    """Return the memory of this machine, or the limit of this container if that is less."""
    try:
        return memory_total()
    except (OSError, ValueError):
        return LEAST_BYTES


def largest_file_bytes() -> int:
    return min(MAX_FILE_BYTES, machine_bytes() // _FILE_SHARE)


class ParseTask(msgspec.Struct):
    """Files for another process.

    Attributes:
        uri: the storage that the process reads them from; "" if their bytes are sent.
        data: their bytes.
    """

    items: list[Item]
    uri: str = ""
    data: list[bytes] = []


class ParsedFile(msgspec.Struct, array_like=True):
    """Rows and outcome of a file."""

    outcome: Outcome
    system: SystemRows | None = None
    trace: TraceRows | None = None

    @classmethod
    def of(cls, rows: Rows | None, outcome: Outcome) -> ParsedFile:
        """Return those that `parse_all` yields."""
        return cls(outcome, system=rows) if isinstance(rows, SystemRows) else cls(outcome, trace=rows)

    @property
    def rows(self) -> Rows | None:
        trace = self.trace
        if trace is not None and trace.numbers.ndim == 1:  # arrays are sent flat
            return attrs.evolve(trace, numbers=trace.numbers.reshape(-1, 6))
        return self.system if trace is None else trace


@Remote
def parse_files(task: ParseTask) -> list[ParsedFile]:
    if task.uri:
        parsed = list(parse_all(open_storage(task.uri), task.items, processes=1))
    else:
        parsed = [_parse_here(item, data) for item, data in zip(task.items, task.data, strict=True)]
    return [ParsedFile.of(rows, outcome) for _, rows, outcome in parsed]


def parse_bytes(item: Item, data: bytes) -> tuple[Rows, Outcome]:
    try:
        if item.is_system:
            return read_system(data, item.node, item.at_us)
        return read_trace(data, item.node, item.kind, item.start_us, approximate=item.approximate)
    except MemoryError:
        nothing = parse_bytes(item, b"")[0]
        return nothing, Outcome(REFUSED, 0, "too large for this machine's memory")


def parse_all(
    storage: Storage, items: Iterable[Item], *, processes: int | None = None, ahead_bytes: int = AHEAD_BYTES
) -> Generator[Parsed, None, None]:
    """Parse files in their order.

    Args:
        processes: number of parsing processes; None: one per processor, for enough data.
        ahead_bytes: bytes of files that may be in flight or waiting besides the file that is yielded.

    Raises:
        SourceError: a file cannot be fetched. One that is too large, must not be read or was removed is refused instead.
    """
    items, limit = items if isinstance(items, Sequence) else list(items), largest_file_bytes()
    fits = all(item.info.size <= limit for item in items)
    usual = items if fits else [item for item in items if item.info.size <= limit]
    parsed = _parse(storage, usual, processes, ahead_bytes)
    with closing(parsed):
        for item in items:
            if item.info.size <= limit:
                yield next(parsed)
            else:
                yield item, None, Outcome(REFUSED, 0, f"larger than {limit / (1 << 30):.3g} GB")


def _parse(
    storage: Storage, items: Sequence[Item], processes: int | None, ahead_bytes: int
) -> Generator[Parsed, None, None]:
    wanted = processes
    if wanted is None:
        wanted = processors() if sum(item.info.size for item in items) >= WORTH_BYTES else 1
    if wanted > 1 and sys.executable:
        yield from _in_processes(storage, items, wanted, ahead_bytes)
        return
    fetched = read_all(storage, (item.info for item in items), ahead_bytes=ahead_bytes)
    for item, (_, data) in zip(items, fetched, strict=True):
        yield _parse_here(item, data)


def _parse_here(item: Item, data: bytes | SourceError) -> Parsed:
    if isinstance(data, MissingFileError):
        return item, None, Outcome(REFUSED, 0, "removed before it was read")
    if isinstance(data, AccessDeniedError):
        return item, None, Outcome(REFUSED, 0, DENIED)
    if isinstance(data, UnreadableFileError):
        return item, None, Outcome(REFUSED, 0, str(data))
    if isinstance(data, SourceError):
        raise data
    return item, *parse_bytes(item, data)


def _in_processes(
    storage: Storage, items: Sequence[Item], processes: int, ahead_bytes: int
) -> Generator[Parsed, None, None]:
    """Parse files in processes, which read those of a local folder themselves."""
    uri = os.path.abspath(storage.uri) if isinstance(storage, LocalStorage) else ""
    infos = (item.info for item in items)
    fetched = ((info, b"") for info in infos) if uri else read_all(storage, infos, ahead_bytes=ahead_bytes)
    waiting: deque[tuple[Item, bytes | SourceError, Future[bytes] | None]] = deque()
    held = 0
    workers = LocalExecutor(processes, restarts=False)
    try:
        for item, (_, data) in zip(items, fetched, strict=True):
            while waiting and held + item.info.size > ahead_bytes:
                held -= waiting[0][0].info.size
                yield _result(storage, *waiting.popleft())
            waiting.append((item, data, _submitted(workers, item, data, uri)))
            held += item.info.size
        while waiting:
            yield _result(storage, *waiting.popleft())
    finally:
        workers.shutdown(wait=False, cancel_futures=True)


def _submitted(workers: LocalExecutor, item: Item, data: bytes | SourceError, uri: str) -> Future[bytes] | None:
    if isinstance(data, SourceError):
        return None
    with suppress(UnicodeEncodeError):  # of a folder or file whose name is no text
        return workers.submit(parse_files, parse_files.encode(ParseTask([item], uri, [] if uri else [data])))
    return None


def _result(storage: Storage, item: Item, data: bytes | SourceError, answer: Future[bytes] | None) -> Parsed:
    """Wait for the rows of a file; parse it here if no process could."""
    if answer is not None:
        with suppress(BrokenExecutor, RuntimeError, OSError):  # killed for its memory, for example
            (found,) = parse_files.decode(answer.result())
            return item, found.rows, found.outcome
    if not data and isinstance(storage, LocalStorage):
        try:
            data = storage.read(item.info.key)
        except SourceError as error:
            data = error
    return _parse_here(item, data)


class ColumnFiller:
    """Rows of several tables one after another, without a table of each in memory."""

    def __init__(self, kind: Any, rows: int) -> None:
        self._kind, self._filled, self._room = kind, 0, min(rows, _MOST)
        empty = kind.empty()
        self._names = [field.name for field in attrs.fields(kind)]
        self._texts = {name: Numbering() for name in self._names if isinstance(getattr(empty, name), Category)}
        self._codes: dict[str, tuple[tuple[str, ...], _Codes | None]] = {}  # texts of the last table, and their numbers
        kinds = {name: np.int32 if name in self._texts else getattr(empty, name).dtype for name in self._names}
        self._columns: dict[str, NDArray[Any]] = {name: np.empty(self._room, kind) for name, kind in kinds.items()}

    def add(self, table: Any, start: int = 0, stop: int | None = None) -> None:
        stop = len(table) if stop is None else stop
        end = self._filled + stop - start
        if end > self._room:
            self._room = max(end, self._room + self._room // 2)
            self._columns = {name: _longer(column, self._filled, self._room) for name, column in self._columns.items()}
        for name, filled in self._columns.items():
            column, target = getattr(table, name), filled[self._filled : end]
            if not isinstance(column, Category):
                target[:] = column[start:stop]
                continue
            codes = self._codes_of(name, column.values)
            if codes is None:
                target[:] = column.codes[start:stop]
            elif len(codes):
                np.take(codes, column.codes[start:stop], out=target, mode="clip")  # other modes copy the result
        self._filled = end

    def _codes_of(self, name: str, values: tuple[str, ...]) -> _Codes | None:
        """Return the numbers of texts in the whole column; None if they are the same as in the table."""
        known = self._codes.get(name)
        if known is not None and known[0] is values:
            return known[1]
        numbers = self._texts[name]
        found = np.fromiter((numbers[text] for text in values), np.int32, len(values))
        codes = None if np.array_equal(found, np.arange(len(found))) else found
        self._codes[name] = values, codes
        return codes

    def columns(self) -> Any:
        """Return all rows; the filler is empty then."""
        found, self._columns = self._columns, {}
        rows = {name: found.pop(name)[: self._filled] for name in self._names}
        return self._kind(**{
            name: Category(column, tuple(self._texts[name])) if name in self._texts else column
            for name, column in rows.items()
        })  # fmt: skip


def _longer(column: NDArray[Any], filled: int, rows: int) -> NDArray[Any]:
    made = np.empty(rows, column.dtype)
    made[:filled] = column[:filled]
    return made


@attrs.frozen(eq=False)
class FileRows:
    """The rows of one file.

    Attributes:
        outcome: the outcome of reading it.
        metadata: sm-profiler's own records in it.
        rows: its rows if it was parsed.
        copy, start, stop: the copy, and the position of its rows in it, if it was copied.
        loose: ends and begins of events without a counterpart in the file, if only its rows were copied.
    """

    item: Item
    outcome: Outcome
    metadata: tuple[dict[str, Any], ...] = ()
    rows: tuple[Rows, ...] = ()
    copy: Copy | None = None
    start: int = 0
    stop: int = 0
    loose: TraceRows | None = None

    @classmethod
    def parsed(cls, item: Item, rows: Rows | None, outcome: Outcome) -> FileRows:
        metadata = rows.metadata if isinstance(rows, TraceRows) else ()
        return cls(item, outcome, metadata, () if rows is None else (rows,))

    @classmethod
    def copied(cls, copy: Copy, reading: Reading, start: int) -> FileRows:
        return cls(reading.item, reading.outcome, reading.metadata, (), copy, start, start + reading.rows)

    @property
    def count(self) -> int:
        return self.stop - self.start + sum(len(rows.head) for rows in self.rows)

    @property
    def reading(self) -> Reading:
        return Reading(self.item, self.count, self.outcome, self.metadata)

    @property
    def loose_ends(self) -> tuple[LooseEnd, ...]:
        return tuple(end for rows in self._unjoined for end in rows.loose_ends)

    @property
    def open_events(self) -> tuple[OpenEvent, ...]:
        return tuple(event for rows in self._unjoined for event in rows.open_events)

    @property
    def _unjoined(self) -> list[TraceRows]:
        return [rows for rows in (self.loose, *self.rows) if isinstance(rows, TraceRows)]

    def joined(self, streams: Streams) -> FileRows:
        """Return the rows with the events that began in earlier files; a copy already includes them."""
        if self.loose is not None:
            earlier, outcome = streams.take(self.loose, self.outcome)
            return attrs.evolve(self, rows=tuple(earlier[:-1]), outcome=outcome)
        if not self.rows or not isinstance(self.rows[0], TraceRows):
            return self
        rows, outcome = streams.take(self.rows[0], self.outcome)
        return attrs.evolve(self, rows=tuple(rows), outcome=outcome)


class ColumnBuilder:
    """Columns of several files, built file by file."""

    def __init__(self, *, is_system: bool, size: int = 0, rows: int | None = None) -> None:
        """Start with no rows.

        Args:
            is_system: the files have system metrics.
            size: the expected number of bytes of files; 0 if unknown.
            rows: the number of all rows, if it is known: each row is then written to its place at once.
        """
        self._is_system = is_system
        self._kind: Any = SystemColumns if is_system else EventColumns
        self._filler = None if rows is None else ColumnFiller(self._kind, rows)
        self._size = size
        self._seen_bytes = self._seen_rows = 0
        self._tables: list[Any] = []  # columns, or packed ones and which of their rows
        self._waiting: list[SystemRows | TraceRows] = []
        self._waiting_rows = 0
        self._assembler: Any = None
        self._span: tuple[Copy, int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self._tables or self._waiting or self._assembler or self._span)

    def add(self, file: FileRows) -> None:
        if file.rows:
            self._close_span()
            count = sum(len(rows.head) for rows in file.rows)
            self._waiting.extend(file.rows)
            self._waiting_rows += count
            self._seen_rows += count
            self._seen_bytes += file.item.info.size
            if self._waiting_rows > _TOGETHER:
                self._assemble()
        if file.copy is not None:
            self._close_rows()
            if self._span and self._span[0] is file.copy and self._span[2] == file.start:
                self._span = (file.copy, self._span[1], file.stop)
                return
            self._close_span()
            self._span = (file.copy, file.start, file.stop)

    def columns(self) -> Any:
        """Return all rows, without copying them if they are consecutive in a copy; the builder is empty then."""
        self._close_span()
        self._close_rows()
        if self._filler is not None:
            return self._filler.columns()
        tables, self._tables = self._tables, []
        if tables and all(isinstance(each, tuple) for each in tables):
            return gather(self._kind, tables)
        return self._kind.concat([each[0][each[1]] if isinstance(each, tuple) else each for each in tables])

    def _assemble(self) -> None:
        if self._assembler is None:
            probable = int(1.05 * self._seen_rows * self._size / self._seen_bytes) if self._seen_bytes else 0
            kind = SystemAssembler if self._is_system else EventAssembler
            self._assembler = kind(max(probable, self._waiting_rows))
        for rows in self._waiting:
            self._assembler.add(rows)
        self._waiting, self._waiting_rows = [], 0

    def _close_rows(self) -> None:
        if self._waiting:
            self._assemble()
        if self._assembler is not None:
            found, self._assembler = self._assembler.columns(), None
            if self._filler is not None:
                self._filler.add(found)
            else:
                self._tables.append(found)

    def _close_span(self) -> None:
        if self._span:
            copy, start, stop = self._span
            if self._filler is not None:
                self._filler.add(copy.columns, start, stop)
            elif isinstance(copy.columns, Packed):
                self._tables.append((copy.columns, slice(start, stop)))
            else:
                everything = start == 0 and stop == len(copy.columns)
                self._tables.append(copy.columns if everything else copy.columns[start:stop])
            self._span = None
