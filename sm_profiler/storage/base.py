"""The storage protocol: files below one root, local or on S3."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Protocol

import attrs

from sm_profiler.errors import SourceError


class MissingFileError(SourceError):
    """A file that does not exist, or no longer exists."""


class AccessDeniedError(SourceError):
    """A file or bucket that these permissions or credentials give no access to."""


class UnreadableFileError(SourceError):
    """A file that cannot be read for a reason of its own, while others can."""


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
