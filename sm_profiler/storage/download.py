"""Parallel reading of many files, with a bound on the bytes that are read ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from sm_profiler.errors import SourceError
from sm_profiler.storage.base import FileInfo, Storage, UnreadableFileError

RANGE_BYTES = 16 << 20
AHEAD_BYTES = 128 << 20


def read_all(
    storage: Storage, files: Iterable[FileInfo], *, ahead_bytes: int = AHEAD_BYTES
) -> Iterator[tuple[FileInfo, bytes | SourceError]]:
    """Yield files in the given order, each with its bytes or the error that kept it from being read.

    Besides the file that is yielded, at most `ahead_bytes` are held or in transit, or a single file if that is larger.
    Large objects are fetched in parallel ranges.
    """
    if storage.parallel_reads <= 1:
        for info in files:
            yield info, _attempt(lambda key=info.key: storage.read(key))  # type: ignore[misc]  # bound at once
        return
    waiting: deque[tuple[FileInfo, list[Future[bytes | SourceError]]]] = deque()
    held = 0
    pool = ThreadPoolExecutor(storage.parallel_reads, "sm-profiler-read")
    try:
        for info in files:
            while waiting and held + info.size > ahead_bytes:
                done, futures = waiting.popleft()
                held -= done.size
                yield done, _joined(done, futures)
            waiting.append((info, [pool.submit(_attempt, part) for part in _parts(storage, info)]))
            held += info.size
        while waiting:
            done, futures = waiting.popleft()
            yield done, _joined(done, futures)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _attempt(read: Callable[[], bytes]) -> bytes | SourceError:
    try:
        return read()
    except SourceError as error:
        return error


def _parts(storage: Storage, info: FileInfo) -> list[Callable[[], bytes]]:
    if info.size <= RANGE_BYTES:
        return [lambda: storage.read(info.key)]
    starts = range(0, info.size, RANGE_BYTES)
    return [lambda at=at: storage.read(info.key, at, min(at + RANGE_BYTES, info.size)) for at in starts]  # type: ignore[misc]  # bound at once


def _joined(info: FileInfo, futures: list[Future[bytes | SourceError]]) -> bytes | SourceError:
    parts: list[bytes] = []
    for future in futures:
        part = future.result()
        if isinstance(part, SourceError):
            return part
        parts.append(part)
    whole = parts[0] if len(parts) == 1 else b"".join(parts)
    if len(parts) > 1 and len(whole) != info.size:
        return UnreadableFileError(f"{info.key} changed while it was being read")
    return whole
