"""Files through which the processes of one node cooperate: the lock of the node's monitor, and the registry of the job's processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from sm_profiler.descriptors import open_descriptor, open_regular
from sm_profiler.formats.layout import IGNORED_FOLDER, SYSTEM_FOLDER, TEMPORARY
from sm_profiler.processes import PROC, start_time

ENTRY_SECONDS = 2.0
ENDED = ".ended"  # the interpreter ran to its end
CUT = ".cut"  # a signal ended the process
DONE = "done "  # before the process id
RESTART_SECONDS = 60.0  # in which a launcher starts its ranks again, after the last of them has ended
_PID_BYTES = 15


class NodeLock:
    """The lock on a node's monitor in one output folder: one process samples and uploads.

    The lock belongs to the open file and is released when the last process that holds `fd` ends, in any way. A child that
    inherits `fd` keeps the lock after its parent has closed its own copy.
    """

    def __init__(self, root: Path, node: str, fd: int = -1) -> None:
        self._path = Path(root, IGNORED_FOLDER, f"monitor-{node}.lock")
        self.fd = fd

    def acquire(self) -> bool:
        """Take the lock and return True; False if another process holds it."""
        fd = _try_lock(self._path)
        if fd is None:
            return False
        self.fd = fd
        return True

    def is_held(self) -> bool:
        """Return whether any process holds the lock now."""
        try:
            fd = _try_lock(self._path)
        except OSError:
            return False
        if fd is not None:
            os.close(fd)
        return fd is None

    def sign(self) -> None:
        """Record in the lock's file that this process holds it."""
        with contextlib.suppress(OSError):
            os.ftruncate(self.fd, os.pwrite(self.fd, str(os.getpid()).encode(), 0))

    def sign_off(self) -> None:
        """Record that this process, which holds the lock, has done all its work."""
        with contextlib.suppress(OSError):
            os.ftruncate(self.fd, os.pwrite(self.fd, f"{DONE}{os.getpid()}".encode(), 0))

    def is_done(self, pid: int) -> bool:
        """Return whether a process that held the lock has done all its work."""
        return self._text() == f"{DONE}{pid}".encode()

    def is_signed_off(self) -> bool:
        """Return whether a process that held the lock has done all its work, and no other has signed it since."""
        return self._text().startswith(DONE.encode())

    def signer(self) -> int | None:
        """Return the process that signed the lock's file; None if none has."""
        text = self._text()
        return int(text) if text.isdigit() else None

    def _text(self) -> bytes:
        # At the end of a process, nothing can be imported that needs threads, such as our storages.
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(fd, "rb") as file:
                return file.read(_PID_BYTES)
        except OSError:
            return b""

    def release(self) -> None:
        """Close this process's copy; a child that inherited the lock keeps it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@contextlib.contextmanager
def entry_lock(root: Path, node: str) -> Iterator[None]:
    """Serialize joining and leaving, so that no process joins a monitor that is about to end."""
    with locked(Path(root, IGNORED_FOLDER, f"entry-{node}.lock")):
        yield


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold the lock of a file, and yield the open file.

    Raises:
        OSError: the folder cannot be written, or another process holds the lock for too long.
    """
    until = time.monotonic() + ENTRY_SECONDS
    while (fd := _try_lock(path)) is None:
        if time.monotonic() > until:
            raise TimeoutError(f"{path} is held by another process")
        time.sleep(0.005)
    try:
        yield fd
    finally:
        os.close(fd)


class ProcessRegistry:
    """The processes of a job on one node.

    The monitor runs while one of them is alive, and the way they ended decides whether it writes end markers. Each process
    has a file named after its pid and start time, so that a reused pid is not mistaken for it.
    """

    def __init__(self, root: Path, node: str, proc: Path = PROC) -> None:
        self._folder = Path(root, IGNORED_FOLDER, f"processes-{node}")
        self._proc = proc

    def register(self, pid: int, host: str = "") -> None:
        """Add a process; with the identity of its machine, a reader there detects its end even if the monitor was killed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{pid}-{start_time(pid, self._proc)}"
        with os.fdopen(open_descriptor(path, os.O_WRONLY | os.O_CREAT), "w") as file:
            file.truncate()
            file.write(host)

    def leave(self, pid: int, *, by_itself: bool = True) -> None:
        """Record that a process is about to end, by itself or by a signal."""
        path = self._folder / f"{pid}-{start_time(pid, self._proc)}"
        with contextlib.suppress(OSError):
            path.rename(path.with_name(path.name + (ENDED if by_itself else CUT)))

    def living(self) -> list[int]:
        """Return the processes that are alive and have not left."""
        return [int(name.partition("-")[0]) for name in self._names() if self._lives(name)]

    def all_ended(self) -> bool:
        """Return whether every registered process ended by itself."""
        names = self._names()
        return bool(names) and all(name.endswith(ENDED) for name in names)

    def was_killed(self) -> bool:
        """Return whether a registered process is gone without having left."""
        return bool(self.vanished()) or any(name.endswith(CUT) for name in self._names())

    def vanished(self) -> list[int]:
        """Return the processes that are gone without having left."""
        gone = (name for name in self._names() if "." not in name and not self._lives(name))
        return sorted(int(name.partition("-")[0]) for name in gone)

    def vanished_here(self, host: str) -> list[int]:
        """Return the processes of this machine that are gone without having left."""
        found = []
        for name in self._names():
            with contextlib.suppress(OSError, ValueError):
                if "." in name or self._lives(name):
                    continue
                with open_regular(self._folder / name, flags=os.O_NOFOLLOW) as file:
                    if file.read().decode() == host:
                        found.append(int(name.partition("-")[0]))
        return sorted(found)

    def dead(self) -> set[str]:
        """Return the file names of processes that have ended, in any way."""
        return {name for name in self._names() if not self._lives(name)}

    def forget(self, names: set[str]) -> None:
        """Remove processes whose end no longer matters for the job's."""
        for name in names:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()

    def _lives(self, name: str) -> bool:
        pid, _, started = name.partition("-")
        return pid.isdecimal() and started.isdecimal() and start_time(int(pid), self._proc) == started

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._folder)  # only names are needed, ten times a second
        except OSError:
            return []


def is_over_here(root: Path, host: str) -> bool:
    """Return whether a profile's processes and monitors have ended for so long that no launcher starts them again.

    Args:
        root: the profile's folder.
        host: identity of this machine; of processes that ran on another, only a monitor detects the end.
    """
    locks = list((root / IGNORED_FOLDER).glob("monitor-*.lock"))
    nodes = [path.stem.removeprefix("monitor-") for path in locks]
    written = [*locks, *(root / SYSTEM_FOLDER).glob(f"*{TEMPORARY}")]
    with contextlib.suppress(OSError):
        latest = max((path.stat().st_mtime for path in written), default=time.time())
        return time.time() - latest > RESTART_SECONDS and all(_is_over_here(root, node, host) for node in nodes)
    return False


def _is_over_here(root: Path, node: str, host: str) -> bool:
    registry, lock = ProcessRegistry(root, node), NodeLock(root, node)
    if registry.living() or lock.is_held():
        return False
    return lock.is_signed_off() or bool(host and registry.vanished_here(host))


def _try_lock(path: Path) -> int | None:
    """Return an open file with an exclusive lock; None if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = open_descriptor(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd
