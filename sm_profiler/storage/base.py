"""What a storage is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import attrs

from sm_profiler.errors import SourceError


class MissingFileError(SourceError):
    """A file that does not exist, or no more."""


@attrs.frozen
class FileInfo:
    """A file as a listing shows it.

    Attributes:
        key: its path below the storage's root, with forward slashes.
        size: bytes.
        mtime: last change in seconds since the epoch.
        etag: what the storage calls its content; "" where it has no name for it.
    """

    key: str
    size: int
    mtime: float
    etag: str = ""


class Storage(Protocol):
    """Files below one root; keys are relative to it."""

    @property
    def uri(self) -> str:
        """Where the root is, as a user would write it."""

    @property
    def parallel_reads(self) -> int:
        """How many reads at the same time are worth while."""

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[FileInfo]:
        """All files whose key begins with `prefix` and comes after `start_after`, in the order of their keys.

        Raises:
            SourceError: the storage cannot be listed; a root that does not exist has no files.
        """

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes of a file, from `start` up to and without `end` where they are given.

        Raises:
            MissingFileError: there is no such file.
            SourceError: it cannot be read.
        """

    def write(self, key: str, data: bytes) -> None:
        """Put a file, at once and whole: no reader sees a part of it.

        Raises:
            SourceError: it cannot be written.
        """

    def exists(self, key: str) -> bool:
        """Whether there is such a file."""
