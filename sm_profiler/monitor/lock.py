"""One monitor a node: whoever holds the lock samples; the lock goes with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from sm_profiler.formats.layout import IGNORED_FOLDER


class NodeLock:
    """A lock on a node's system metrics in one output folder."""

    def __init__(self, root: Path, node: str) -> None:
        self._path = Path(root, IGNORED_FOLDER, f"monitor-{node}.lock")
        self._fd = -1

    def acquire(self) -> bool:
        """Take the lock; False where another process of this node has it.

        Raises:
            OSError: the folder cannot be written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        """Give the lock back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
