"""Files that are still written, or that a job left open when its processes and its monitor were killed together.

No process completes the latter, as the next monitor or the last process would, and the folder may belong to another user or be
a copy. So a profile stays as it is, and copies of these files are completed.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from sm_profiler.descriptors import open_regular
from sm_profiler.errors import SourceError
from sm_profiler.formats.layout import (
    END_MARKERS,
    IGNORED_FOLDER,
    LOADING_FOLDER,
    OUTPUT,
    STOP_FOLDER,
    SYSTEM,
    SYSTEM_FOLDER,
    TEMPORARY,
    TRACE_FOLDER,
)
from sm_profiler.formats.process_end import KILLED
from sm_profiler.formats.trace_recovery import (
    MAX_LEFT_BYTES,
    ended_by_signal,
    failed_exits,
    record_vanished,
    recover_loading,
    recover_traces,
    was_killed_here,
)
from sm_profiler.identity import host_id
from sm_profiler.monitor.node_state import ProcessRegistry
from sm_profiler.storage import FileInfo, LocalStorage
from sm_profiler.storage.base import real_path

MAX_COPIED_BYTES = 4 << 30
CLOSE_SECONDS = 60.0  # after which a trace file is closed by default
UNTOUCHED_S = 60.0  # on a file system without locks, or without the monitor's lock: writers flush every second
_NS_DIGITS = 20


def profile_folder(folder: Path) -> Path:
    """Return the folder that holds `system` and `framework`: the given one, or `profiler-output` in it."""
    return folder if any((folder / kind).is_dir() for kind in ("system", "framework")) else folder / "profiler-output"


def open_files(base: Path) -> list[Path]:
    """Return the files of a profile that are still written, by path; the complete ones are not listed."""
    found = [path for name in (TRACE_FOLDER, SYSTEM_FOLDER) for path in (base / name).glob(f"*.json{TEMPORARY}")]
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


def closes_in(base: Path) -> float | None:
    """Return the seconds until the first of the open trace files is due to be closed; None if there is none."""
    begun = []
    for path in (base / TRACE_FOLDER).glob(f"*.json{TEMPORARY}"):
        text = path.name.removesuffix(f".json{TEMPORARY}").rpartition("_")[2]
        if text.isdecimal() and len(text) < _NS_DIGITS:
            begun.append(int(text) / 1e9)
    return max(min(begun) + CLOSE_SECONDS - time.time(), 0.0) if begun else None


def copy_readable(base: Path, paths: Iterable[Path], to: Path, *, killed: bool = False) -> None:
    """Copy files of a profile, open ones under names that readers accept, at most MAX_COPIED_BYTES.

    Files that are gone by now, links that lead out of the profile, and what is too long for an open file are left out.

    Args:
        base: the profile's folder.
        to: the folder of the copies.
        killed: the processes that left them open were killed; otherwise, they may be alive.
    """
    left = MAX_COPIED_BYTES
    for path in paths:
        key = path.relative_to(base)
        target = to / key.with_name(readable_name(key))
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            contextlib.suppress(OSError, SourceError),
            open_regular(real_path(base, key.as_posix()), flags=os.O_NOFOLLOW) as file,
        ):
            state = os.fstat(file.fileno())
            if state.st_size <= left and (state.st_size <= MAX_LEFT_BYTES or not key.name.endswith(TEMPORARY)):
                target.write_bytes(file.read(state.st_size))
                os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))
                left -= state.st_size
    recover_traces(to, stopped=False if killed else None, count_kills=False)


def readable_name(key: Path) -> str:
    """Return the name under which a reader, or `recover_traces`, accepts a file that is still written, or of an end."""
    if key.parts[0] == "system":
        return key.name.removesuffix(TEMPORARY)
    if not key.name.endswith(TEMPORARY) and key.parts[0] != IGNORED_FOLDER:
        return key.name
    parts = key.name.rsplit("_", 3 if key.name.endswith(TEMPORARY) else 2)
    if len(parts) > 1:
        parts[1] = f"copied-{parts[1]}"  # no pid, whose process may run, or another one here
    return "_".join(parts)


class LeftStorage:
    """A local profile with the files that were left open, under the names of finished ones.

    Attributes:
        root: the profile's folder.
        left_open: there are such files; otherwise, it is only known how processes ended.
    """

    parallel_reads = 1

    def __init__(self, local: LocalStorage, files: Iterable[Path], ends: Sequence[Path] = ()) -> None:
        self.root = local.root
        self._local = local
        copies = Path(tempfile.mkdtemp(prefix="sm-profiler-"))
        weakref.finalize(self, shutil.rmtree, copies, ignore_errors=True)
        here = host_id(in_container=False)
        killed, others = list(ends), list[Path]()
        for path in files:
            (killed if was_killed_here(path, here) else others).append(path)
        self.left_open = bool(others) or len(killed) > len(ends)
        copy_readable(local.root, killed, copies, killed=True)
        recover_loading(copies, None)
        copy_readable(local.root, others, copies)
        if not any((root / TRACE_FOLDER).exists() for root in (local.root, copies)):
            for path in others:
                _record_vanished(path, local.root, copies, here)
        self._left = LocalStorage(copies)
        self._keys = {info.key for info in self._left.list()}

    @property
    def uri(self) -> str:
        return self._local.uri

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[FileInfo]:
        """Yield all files whose key begins with `prefix` and follows `start_after`, in the order of their keys."""
        both = self._local.list(prefix, start_after), self._left.list(prefix, start_after)
        yield from heapq.merge(*both, key=attrgetter("key"))

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of a file, or those from `start` up to but not including `end`."""
        return (self._left if key in self._keys else self._local).read(key, start, end)

    def write(self, key: str, data: bytes) -> None:
        self._local.write(key, data)

    def exists(self, key: str) -> bool:
        return key in self._keys or self._local.exists(key)


def with_left_files(local: LocalStorage) -> LocalStorage | LeftStorage:
    """Return a folder with what its job left open; the folder itself if there is nothing."""
    found = [path for path in open_files(local.root) if path.stat().st_size and _is_left(path, local.root)]
    ends = [*failed_exits(local.root), *ended_by_signal(local.root / STOP_FOLDER)]
    if not (local.root / TRACE_FOLDER).exists():
        ends += ended_by_signal(local.root / LOADING_FOLDER)
    return LeftStorage(local, found, ends) if found or ends else local


def _record_vanished(path: Path, root: Path, to: Path, host: str) -> None:
    """Write how the processes of a node ended that were killed while they started, if a system file that was left is theirs."""
    if host and path.relative_to(root).parts[0] == SYSTEM:
        node = path.name.split(".")[1]
        with contextlib.suppress(OSError):
            for pid in ProcessRegistry(root, node).vanished_here(host):
                record_vanished(to, node, pid, KILLED, path.stat().st_mtime)


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


def last_written(folder: Path, *, whole: bool = False) -> float:
    """Return when a file (`whole`: one that is complete) of a folder's profile was last written, in seconds since the epoch; 0 if it has none."""
    found = (
        file.mtime
        for base in (folder, folder / OUTPUT)
        for kind in ("system", "framework")
        for file in LocalStorage(base).list(f"{kind}/")
        if file.key not in END_MARKERS and not (whole and file.key.endswith(TEMPORARY))
    )
    with contextlib.suppress(SourceError):  # reported when it is read
        return max(found, default=0.0)
    return 0.0
