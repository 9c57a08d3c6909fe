"""Files to rows, in this process or, for large amounts of data, in several."""

from __future__ import annotations

import fcntl
import os
import sys
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import msgspec
import numpy as np

from sm_profiler.errors import SourceError
from sm_profiler.formats.outcome import MAX_FILE_BYTES, REFUSED, Outcome
from sm_profiler.formats.system_reader import SystemRows, account, read_system
from sm_profiler.formats.trace_reader import read_trace
from sm_profiler.formats.trace_rows import LooseEnd, OpenEvent, TraceRows
from sm_profiler.limits import memory_total
from sm_profiler.processes import Helper, processors, read_exactly, receive_message, send_message
from sm_profiler.source.item_table import Item
from sm_profiler.storage import AccessDeniedError, LocalStorage, MissingFileError, Storage, read_all
from sm_profiler.storage.base import UnreadableFileError
from sm_profiler.storage.local import real_path

LEAST_BYTES = 2 << 30  # assumed if the system cannot answer
_FILE_SHARE = 4  # a file is held once by its reader and once by the process that parses it, beside its rows


def machine_bytes() -> int:
    """Return the memory of this machine, or the limit of this container if that is less."""
    try:
        return memory_total()
    except (OSError, ValueError):
        return LEAST_BYTES


def largest_file_bytes() -> int:
    """Return the size of the largest file that is read."""
    return min(MAX_FILE_BYTES, machine_bytes() // _FILE_SHARE)


Rows = SystemRows | TraceRows


class Request(msgspec.Struct, array_like=True):
    """A file to parse: the process opens it by its path, or `size` bytes follow.

    The path is bytes, as names of local files need not be text.
    """

    is_system: bool
    node: str
    kind: str
    start_us: float
    approximate: bool
    path: bytes
    size: int


class _Answer(msgspec.Struct, array_like=True):
    count: int
    outcome: tuple[str, int, str]
    is_system: bool
    heads: list[tuple[str | int, str | int, str | int, str | int]]
    argument_count: int = 0
    others: list[str] = []
    node: str = ""
    kind: str = ""
    metadata: list[dict[str, Any]] = []
    loose: list[tuple[tuple[str, int | str], float, str]] = []
    left: list[tuple[tuple[str, int | str], tuple[str, str, int, int], float, str]] = []


_ANSWER = msgspec.msgpack.Decoder(_Answer)
_REQUEST = msgspec.msgpack.Decoder(Request)


def send_request(stream: IO[bytes], request: Request, data: bytes) -> None:
    """Send a request."""
    send_message(stream, msgspec.msgpack.encode(request))
    stream.write(data)
    stream.flush()


def receive_request(stream: IO[bytes]) -> tuple[Request, bytes]:
    """Receive a request and the bytes sent with it.

    Raises:
        EOFError: the owner has closed the pipe.
    """
    request = _REQUEST.decode(receive_message(stream))
    return request, read_exactly(stream, request.size)


def send_rows(stream: IO[bytes], rows: Rows, outcome: Outcome) -> None:
    """Send a file's rows."""
    summary = (outcome.status, outcome.lost, outcome.reason)
    if isinstance(rows, SystemRows):
        answer = _Answer(len(rows.value), summary, is_system=True, heads=list(rows.heads))
        arrays: list[Any] = [rows.timestamp, rows.value, rows.head]
    else:
        answer = _Answer(
            len(rows.start_us),
            summary,
            is_system=False,
            heads=list(rows.heads),
            argument_count=len(rows.numbers),
            others=list(rows.others),
            node=rows.node,
            kind=rows.kind,
            metadata=list(rows.metadata),
            loose=[(end.key, end.end_us, end.args) for end in rows.loose_ends],
            left=[(event.key, event.head, event.start_us, event.args) for event in rows.open_events],
        )
        arrays = [rows.start_us, rows.duration_us, rows.head, rows.argument, rows.numbers]
    send_message(stream, msgspec.msgpack.encode(answer))
    for array in arrays:
        stream.write(np.ascontiguousarray(array).data)
    stream.flush()


def receive_rows(stream: IO[bytes]) -> tuple[Rows, Outcome]:
    """Receive a file's rows.

    Raises:
        EOFError: the process has ended.
    """
    answer = _ANSWER.decode(receive_message(stream))
    kinds = "ddi" if answer.is_system else "ddii"
    # Read in the order in which they were written.
    arrays: Any = [np.frombuffer(read_exactly(stream, answer.count * np.dtype(kind).itemsize), kind) for kind in kinds]
    heads: Any = tuple(answer.heads)
    outcome = Outcome(*answer.outcome)
    if answer.is_system:
        timestamp, value, head = arrays
        return SystemRows(timestamp, value, head, heads), outcome
    start, duration, head, argument = arrays
    return TraceRows(
        start,
        duration,
        head,
        argument,
        heads,
        np.frombuffer(read_exactly(stream, answer.argument_count * 48), np.int64).reshape(-1, 6),
        tuple(answer.others),
        answer.node,
        answer.kind,
        tuple(answer.metadata),
        tuple(LooseEnd(*each) for each in answer.loose),
        tuple(OpenEvent(*each) for each in answer.left),
    ), outcome


DENIED = "access denied"  # reason of a refused file
WORTH_BYTES = 32 << 20  # less than this is parsed faster than a process starts
ALONE_BYTES = 256 << 20  # up to this, this process parses too, which saves the start of one more
AHEAD_BYTES = 64 << 20
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which Python 3.10 does not define
_PIPE_BYTES = 1 << 20

Parsed = tuple[Item, Rows | None, Outcome]


def parse_bytes(request: Request, data: bytes) -> tuple[Rows, Outcome]:
    """Return the rows of a file and the outcome."""
    try:
        if request.is_system:
            return read_system(data, request.node, request.start_us)
        return read_trace(data, request.node, request.kind, request.start_us, approximate=request.approximate)
    except MemoryError:
        nothing = parse_bytes(request, b"")[0]
        return nothing, Outcome(REFUSED, 0, "too large for this machine's memory")


def parse_all(
    storage: Storage, items: Iterable[Item], *, processes: int | None = None, ahead_bytes: int = AHEAD_BYTES
) -> Generator[Parsed, None, None]:
    """Parse files in their order.

    Args:
        storage: where they are.
        items: the files.
        processes: number of parsing processes (threads, if there are only system metrics and Arrow is installed); None:
            one per processor, for enough data. This one is among them unless there is a lot of data: then it only
            distributes and collects, which keeps the others busy.
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
    wanted = processes if processes is not None else processors()
    size = sum(item.info.size for item in items)
    if processes is None and size < WORTH_BYTES:
        wanted = 1
    if wanted > 1 and find_spec("pyarrow") and all(item.is_system for item in items):
        yield from _in_threads(storage, items, wanted, ahead_bytes)
        return
    if wanted > 1 and sys.executable:
        helps = size < ALONE_BYTES and isinstance(storage, LocalStorage)
        yield from _in_processes(storage, items, wanted - helps, ahead_bytes, helps=helps)
        return
    fetched = read_all(storage, (item.info for item in items), ahead_bytes=ahead_bytes)
    for item, (_, data) in zip(items, fetched, strict=True):
        yield _parse_here(item, data)


def _in_threads(
    storage: Storage, items: Sequence[Item], threads: int, ahead_bytes: int
) -> Generator[Parsed, None, None]:
    """Parse files of system metrics with Arrow, which runs in several threads at once."""
    from sm_profiler.formats.system_table import read_table, release_unused  # a process that parses needs no Arrow

    def parse(item: Item, data: bytes | SourceError) -> Parsed:
        rows = None if isinstance(data, SourceError) else read_table(data, item.node)
        return _parse_here(item, data) if rows is None else (item, *account(rows, of_us=item.at_us))

    waiting: deque[Future[Parsed]] = deque()
    with ThreadPoolExecutor(threads, "sm-profiler-parse") as pool:
        fetched = read_all(storage, (item.info for item in items), ahead_bytes=ahead_bytes)
        for item, (_, data) in zip(items, fetched, strict=True):
            waiting.append(pool.submit(parse, item, data))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    release_unused()


def _parse_here(item: Item, data: bytes | SourceError) -> Parsed:
    if isinstance(data, MissingFileError):
        return item, None, Outcome(REFUSED, 0, "removed before it was read")
    if isinstance(data, AccessDeniedError):
        return item, None, Outcome(REFUSED, 0, DENIED)
    if isinstance(data, UnreadableFileError):
        return item, None, Outcome(REFUSED, 0, str(data))
    if isinstance(data, SourceError):
        raise data
    return item, *parse_bytes(_request(item), data)


def _request(item: Item, path: bytes = b"", size: int = 0) -> Request:
    return Request(
        item.is_system,
        item.node,
        item.kind,
        item.at_us if item.is_system else item.start_us,
        item.approximate,
        path,
        size,
    )


def _in_processes(
    storage: Storage, items: Sequence[Item], processes: int, ahead_bytes: int, *, helps: bool
) -> Generator[Parsed, None, None]:
    waiting: deque[tuple[Item, Future[Parsed]]] = deque()
    held = 0
    local = isinstance(storage, LocalStorage)
    fetched = (
        ((item.info, b"") for item in items)
        if local
        else read_all(storage, (item.info for item in items), ahead_bytes=ahead_bytes)
    )
    with _Workers(processes) as workers:
        for item, (_, data) in zip(items, fetched, strict=True):
            while waiting and held + item.info.size > ahead_bytes:
                done, future = waiting.popleft()
                held -= done.info.size
                yield _result(future, waiting, storage, helps=helps)
            waiting.append((item, workers.parse(item, data, storage if local else None)))
            held += item.info.size
        while waiting:
            yield _result(waiting.popleft()[1], waiting, storage, helps=helps)


def _result(
    future: Future[Parsed], waiting: deque[tuple[Item, Future[Parsed]]], storage: Storage, *, helps: bool
) -> Parsed:
    """Wait for a file's rows, and parse files here that no process has begun in the meantime."""
    for place in range(len(waiting)):
        if not helps or future.done():
            break
        item, other = waiting[place]
        if other.cancel():
            waiting[place] = item, _read_here(item, storage)
    return future.result()


def _read_here(item: Item, storage: Storage) -> Future[Parsed]:
    read: Future[Parsed] = Future()
    try:
        read.set_result(_parse_here(item, _fetch(storage, item.info.key)))
    except SourceError as error:
        read.set_exception(error)
    return read


def _fetch(storage: Storage, key: str) -> bytes | SourceError:
    try:
        return storage.read(key)
    except (MissingFileError, AccessDeniedError, UnreadableFileError) as error:
        return error


class _Workers:
    """Parsing processes, each with a thread here that exchanges files and rows with it."""

    def __init__(self, count: int) -> None:
        self._free: SimpleQueue[Helper] = SimpleQueue()
        self._all: list[Helper] = []
        for _ in range(count):
            helper = Helper("sm_profiler.source.worker")
            with suppress(OSError):
                fcntl.fcntl(helper.answers, _SET_PIPE_SIZE, _PIPE_BYTES)
            self._all.append(helper)
            self._free.put(helper)
        self._threads = ThreadPoolExecutor(count, "sm-profiler-parse")

    def __enter__(self) -> _Workers:  # typing.Self comes with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for helper in self._all:
            helper.close()

    def parse(self, item: Item, data: bytes | SourceError, local: Storage | None) -> Future[Parsed]:
        """Parse a file, given as bytes or as a name in a local storage."""
        return self._threads.submit(self._parse, item, data, local)

    def _parse(self, item: Item, data: bytes | SourceError, local: Storage | None) -> Parsed:
        if isinstance(data, SourceError):
            return _parse_here(item, data)
        helper = self._free.get()
        try:
            if helper.process.poll() is None:
                path = os.fsencode(real_path(Path(local.uri), item.info.key)) if local else b""
                send_request(helper.requests, _request(item, path, len(data)), data)
                return item, *receive_rows(helper.answers)
        except UnreadableFileError as error:
            return _parse_here(item, error)
        except (OSError, EOFError):
            helper.process.kill()  # out of step, or gone (killed for memory, for example)
        finally:
            self._free.put(helper)
        return _parse_here(item, _fetch(local, item.info.key) if local else data)
