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

from sm_profiler.errors import SourceError
from sm_profiler.formats.outcome import REFUSED, Outcome
from sm_profiler.formats.system_reader import account, read_system
from sm_profiler.formats.trace_reader import read_trace
from sm_profiler.processes import Helper, processors
from sm_profiler.source.item import Item
from sm_profiler.source.memory import largest_file_bytes
from sm_profiler.source.wire import Request, Rows, receive_rows, send_request
from sm_profiler.storage import AccessDeniedError, LocalStorage, MissingFileError, Storage, read_all
from sm_profiler.storage.base import UnreadableFileError
from sm_profiler.storage.local import real_path

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
