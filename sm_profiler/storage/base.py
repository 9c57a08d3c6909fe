"""The protocol that folders and S3 prefixes share, and that of folders."""

from __future__ import annotations

import os
import random
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import attrs

from sm_profiler.descriptors import open_regular
from sm_profiler.errors import SourceError

RANGE_BYTES = 16 << 20
AHEAD_BYTES = 128 << 20

MAX_DEPTH = 40  # of folders
LEADS_OUT = "is a link that leads out of the profile"


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


def safe_path(root: Path, key: str) -> Path:
    """Return the path of a key below a root.

    Raises:
        SourceError: the key is not a relative path, or leaves the root.
    """
    parts = key.split("/")
    if not key or "\0" in key or "\\" in key or any(part in {"", ".", ".."} for part in parts):
        raise SourceError(f"{key!r} is not a file name below {root}")
    return root.joinpath(*parts)


def real_path(root: Path, key: str) -> Path:
    """Return the path of a key below a root with all links resolved.

    Raises:
        UnreadableFileError: it leads out of the root, to a file that is not part of the profile.
        SourceError: the key is not a relative path.
    """
    path = safe_path(root, key)
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(root)):
        raise UnreadableFileError(f"{path} {LEADS_OUT}")
    return real


class LocalStorage:
    """The files below a local folder.

    Symbolic links to folders are not followed, and those to files only if they stay below the folder.
    """

    parallel_reads = 1

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).expanduser()

    @property
    def uri(self) -> str:
        return str(self.root)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[FileInfo]:
        """Yield all files whose key begins with `prefix` and follows `start_after`, in the order of their keys."""
        folder = prefix.rpartition("/")[0]
        start = safe_path(self.root, folder) if folder else self.root
        yield from self._walk(start, folder + "/" if folder else "", prefix, start_after or "")

    def _walk(self, folder: Path, above: str, prefix: str, after: str) -> Iterator[FileInfo]:
        try:
            with os.scandir(folder) as entries:
                named = sorted((e.name + "/" if e.is_dir(follow_symlinks=False) else e.name, e) for e in entries)
        except FileNotFoundError:
            return
        except OSError as error:
            raise SourceError(f"{folder} cannot be listed: {error.strerror}") from error
        for name, entry in named:
            key = above + name
            if name.endswith("/"):
                if above.count("/") > MAX_DEPTH:  # no writer nests folders like that
                    continue
                if (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key)):
                    yield from self._walk(folder / entry.name, key, prefix, after)
            elif key.startswith(prefix) and key > after:
                try:
                    status = entry.stat()
                except OSError:
                    continue  # renamed or removed since the folder was listed
                if entry.is_file():
                    yield FileInfo(key, status.st_size, status.st_mtime, f"{status.st_mtime_ns:x}-{status.st_ino:x}")

    def folders(self) -> Iterator[str]:
        """Yield the names of the folders directly below the root, each with a slash at its end."""
        try:
            with os.scandir(self.root) as entries:
                yield from sorted(f"{entry.name}/" for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return
        except OSError as error:
            raise SourceError(f"{self.root} cannot be listed: {error.strerror}") from error

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of a file, or those from `start` up to but not including `end`."""
        path = safe_path(self.root, key)
        try:
            with open_regular(real_path(self.root, key), flags=os.O_NOFOLLOW) as file:
                if start:
                    file.seek(start)
                data = file.read() if end is None else file.read(max(0, end - (start or 0)))
        except FileNotFoundError as error:
            raise MissingFileError(f"{path} does not exist") from error
        except PermissionError as error:
            raise AccessDeniedError(f"{path} cannot be read: {error.strerror}") from error
        except OSError as error:
            raise UnreadableFileError(f"{path} cannot be read: {error.strerror}") from error
        if data is None:  # a link to a file of the kernel that would wait for data
            raise UnreadableFileError(f"{path} cannot be read: it has no data yet")
        return data

    def write(self, key: str, data: bytes) -> None:
        """Store a file atomically, through a temporary file next to it."""
        path = safe_path(self.root, key)
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(data)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise SourceError(f"{path} cannot be written: {error.strerror}") from error

    def exists(self, key: str) -> bool:
        return safe_path(self.root, key).is_file()
