"""The storage protocol: files below one root, local or on S3, and reading many of them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import attrs

from sm_profiler.errors import SourceError


class MissingFileError(SourceError):
    """A file that does not exist, or no longer exists."""


class AccessDeniedError(SourceError):
    """A file or bucket that these permissions or credentials give no access to."""


class UnreadableFileError(SourceError):
    """A single file that cannot be read, while others can."""


class UnavailableError(SourceError):
    """A storage that is throttling or failing; the same request may succeed later."""


@attrs.frozen
class FileInfo:
    """One entry of a listing.

    Attributes:
        key: path below the storage's root, with forward slashes.
        size: bytes.
        mtime: last change in seconds since the epoch.
        etag: the storage's identifier of this content; "" if it has none.
    """

    key: str
    size: int
    mtime: float
    etag: str = ""


class Storage(Protocol):
    """Files below one root; keys are relative to it."""

    @property
    def uri(self) -> str:
        """The root, as a user would write it."""

    @property
    def parallel_reads(self) -> int:
        """Number of parallel reads that are worthwhile."""

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[FileInfo]:
        """Yield all files whose key begins with `prefix` and follows `start_after`, in the order of their keys.

        Raises:
            SourceError: the storage cannot be listed; a root that does not exist has no files.
        """

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of a file, or those from `start` up to but not including `end`.

        Raises:
            MissingFileError: the file does not exist.
            SourceError: the file cannot be read.
        """

    def write(self, key: str, data: bytes) -> None:
        """Store a file atomically: no reader sees a part of it.

        Raises:
            SourceError: the file cannot be written.
        """

    def exists(self, key: str) -> bool:
        """Return whether there is such a file."""


def jittered_pause(failures: int, first: float, longest: float) -> float:
    """Return the seconds to wait after the given number of failures: doubling, `longest` at most, with jitter."""
    seconds: float = min(first * 2.0 ** min(max(failures - 1, 0), 20), longest)
    return seconds * random.uniform(0.5, 1.0)  # spreads retries, guards nothing


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
