"""Work of several threads that is done one piece at a time, in the order in which it came up."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A lock that goes to the thread that has waited longest: a plain one may go to the same thread again and again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._is_taken = False

    @property
    def waiting(self) -> int:
        """Number of threads that wait."""
        return len(self._waiting)

    def __enter__(self) -> None:
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()  # released by the thread before, which hands its turn over

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False
