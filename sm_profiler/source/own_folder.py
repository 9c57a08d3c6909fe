"""Small files in the cache of this user: what a command computed, for the next one on this machine."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs

from sm_profiler.source.cache import cache_root

_PRIVATE = 0o700


@attrs.frozen
class OwnFolder:
    """A folder of files, of which the oldest are deleted.

    Attributes:
        name: its name in the cache.
        suffix: of the files' names.
        file_bytes: a larger file is neither written nor read.
        files, total_bytes: limits of all files.
    """

    name: str
    suffix: str
    file_bytes: int
    files: int
    total_bytes: int

    def write(self, what: str, data: bytes) -> None:
        """Keep a file; a folder that cannot be written to is left alone."""
        path = self._path(what)
        if path is None or len(data) > self.file_bytes:
            return
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
            if not _is_own(path.parent.lstat(), stat.S_ISDIR):
                return
            descriptor, temporary = tempfile.mkstemp(dir=path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                Path(temporary).replace(path)
            finally:
                Path(temporary).unlink(missing_ok=True)
            self._make_room(path.parent)

    def _make_room(self, folder: Path) -> None:
        held = 0
        for number, old in enumerate(sorted(folder.iterdir(), key=lambda one: -one.lstat().st_mtime)):
            held += old.lstat().st_size
            if number >= self.files or held > self.total_bytes:
                old.unlink(missing_ok=True)

    def read(self, what: str) -> bytes:
        """Return a file that this user has written; b"" if there is none."""
        path = self._path(what)
        if path is None:
            return b""
        try:
            if not _is_own(path.parent.lstat(), stat.S_ISDIR):
                return b""
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                return file.read() if _is_own(found, stat.S_ISREG) and found.st_size <= self.file_bytes else b""
        except OSError:
            return b""

    def _path(self, what: str) -> Path | None:
        root = cache_root()
        name = hashlib.sha256(os.fsencode(what)).hexdigest()[:24]
        return root.parent / self.name / f"{name}{self.suffix}" if root is not None else None


def _is_own(found: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Return whether no other user can have written a file or folder."""
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and is_kind(found.st_mode)
