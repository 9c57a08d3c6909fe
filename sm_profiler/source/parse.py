"""Files to rows, in this process or, for large amounts of data, in several."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import closing, suppress

import attrs
import msgspec

from sm_profiler.errors import SourceError
from sm_profiler.executors import Remote
from sm_profiler.executors.pools import LocalExecutor
from sm_profiler.formats.outcome import MAX_FILE_BYTES, REFUSED, Outcome
from sm_profiler.formats.system_reader import SystemRows, read_system
from sm_profiler.formats.trace_reader import read_trace
from sm_profiler.formats.trace_rows import TraceRows
from sm_profiler.limits import memory_total
from sm_profiler.processes import processors
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
