"""Files that a job left open when its processes and its monitor were killed together: read as if they had been finished.

No process completes these files, as the next monitor or the last process would, and the folder may belong to another user or
be a copy. So the profile stays as it is, and copies are completed.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path

from sm_profiler.formats.layout import EXIT_FOLDER, IGNORED_FOLDER, SYSTEM
from sm_profiler.formats.trace_recovery import was_killed_here
from sm_profiler.monitor.host import host_id
from sm_profiler.source.open_files import copy_readable, open_files
from sm_profiler.storage import FileInfo, LocalStorage

UNTOUCHED_S = 60.0  # on a file system without locks, or without the monitor's lock: writers flush every second


class LeftStorage:
    """A local profile with the files that were left open, under the names of finished ones.

    Attributes:
        root: the profile's folder.
    """

    parallel_reads = 1

    def __init__(self, local: LocalStorage, files: Iterable[Path], exits: Iterable[Path] = ()) -> None:
        self.root = local.root
        self._local = local
        copies = Path(tempfile.mkdtemp(prefix="sm-profiler-"))
        weakref.finalize(self, shutil.rmtree, copies, ignore_errors=True)
        here = host_id(in_container=False)
        killed, others = list(exits), list[Path]()
        for path in files:
            (killed if was_killed_here(path, here) else others).append(path)
        copy_readable(local.root, killed, copies, killed=True)
        copy_readable(local.root, others, copies)
        self._left = LocalStorage(copies)
        self._keys = {info.key for info in self._left.list()}

    @property
    def uri(self) -> str:
        """The folder's path."""
        return self._local.uri

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[FileInfo]:
        """Yield all files whose key begins with `prefix` and follows `start_after`, in the order of their keys."""
        both = self._local.list(prefix, start_after), self._left.list(prefix, start_after)
        yield from heapq.merge(*both, key=attrgetter("key"))

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of a file, or those from `start` up to but not including `end`."""
        return (self._left if key in self._keys else self._local).read(key, start, end)

    def write(self, key: str, data: bytes) -> None:
        """Store a file atomically in the profile."""
        self._local.write(key, data)

    def exists(self, key: str) -> bool:
        """Return whether there is such a file."""
        return key in self._keys or self._local.exists(key)


def with_left_files(local: LocalStorage) -> LocalStorage | LeftStorage:
    """Return a folder with what its job left open; the folder itself if there is nothing."""
    found = [path for path in open_files(local.root) if path.stat().st_size and _is_left(path, local.root)]
    return LeftStorage(local, found, sorted((local.root / EXIT_FOLDER).glob("*_*_*"))) if found else local


def _is_left(path: Path, root: Path) -> bool:
    """Return whether no process writes a file any more."""
    locked = path
    if path.relative_to(root).parts[0] == SYSTEM:  # the monitor has one lock for all of them
        locked = root / IGNORED_FOLDER / f"monitor-{path.name.split('.')[1]}.lock"
    try:
        file = os.open(locked, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(file)
    except BlockingIOError:
        return False
    except OSError:
        try:
            return time.time() - path.stat().st_mtime > UNTOUCHED_S
        except OSError:  # finished meanwhile
            return False
    return True
