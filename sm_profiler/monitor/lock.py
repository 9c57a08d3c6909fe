"""One monitor a node: whoever holds the lock samples; the lock goes with its process, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from sm_profiler.formats.layout import IGNORED_FOLDER

DOOR_SECONDS = 2.0


class NodeLock:
    """The lock on a node's monitor in one output folder.

    It belongs to the open file, so that a child that inherits `fd` holds it when its parent has closed its own copy.
    """

    def __init__(self, root: Path, node: str, fd: int = -1) -> None:
        self._path = Path(root, IGNORED_FOLDER, f"monitor-{node}.lock")
        self.fd = fd

    def acquire(self) -> bool:
        """Take the lock; False where another process of this node has it.

        Raises:
            OSError: the folder cannot be written.
        """
        fd = _locked(self._path)
        if fd is None:
            return False
        self.fd = fd
        return True

    def is_held(self) -> bool:
        """Whether any process holds it now."""
        try:
            fd = _locked(self._path)
        except OSError:
            return False
        if fd is not None:
            os.close(fd)
        return fd is None

    def release(self) -> None:
        """Give the lock back; where a child has inherited it, it is the child's now."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@contextlib.contextmanager
def door(root: Path, node: str) -> Iterator[None]:
    """Held for a moment by who comes and by who goes, so that nobody comes in while the monitor leaves.

    Raises:
        OSError: the folder cannot be written, or somebody stands in the door.
    """
    path = Path(root, IGNORED_FOLDER, f"door-{node}.lock")
    until = time.monotonic() + DOOR_SECONDS
    while (fd := _locked(path)) is None:
        if time.monotonic() > until:
            raise TimeoutError(f"{path} is held")
        time.sleep(0.005)
    try:
        yield
    finally:
        os.close(fd)


def _locked(path: Path) -> int | None:
    """An open file with an exclusive lock; None where another has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd
