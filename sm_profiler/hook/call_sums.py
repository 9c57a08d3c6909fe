"""Calls that are timed: long ones become events of their own, short ones are summed up for a second."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from sm_profiler.formats.event_names import CALLBACK
from sm_profiler.hook.caller import is_library
from sm_profiler.hook.steps import Record

LONG_NS = 1_000_000  # calls that take longer are events of their own
MAX_LONG = 200  # between two beats; more are summed up like the short ones


class CallSum:
    """Short calls of one function so far; what times them only adds, and each beat takes the difference."""

    __slots__ = ("count", "seen_count", "seen_ns", "total_ns")

    def __init__(self) -> None:
        self.count = self.seen_count = 0
        self.total_ns = self.seen_ns = 0

    def add(self, length_ns: int) -> None:
        """Count a call."""
        self.count += 1
        self.total_ns += length_ns

    def take(self) -> tuple[int, int]:
        """Return the calls and nanoseconds since the last time."""
        count, total = self.count, self.total_ns
        new = count - self.seen_count, total - self.seen_ns
        self.seen_count, self.seen_ns = count, total
        return new


class Callback(CallSum):
    """One function of the user's that a framework calls.

    Attributes:
        name: under which its calls are recorded.
        args: its file, line and name; empty for a library's.
    """

    __slots__ = ("args", "name")

    def __init__(self, name: str, code: CodeType | None) -> None:
        super().__init__()
        self.name = name
        self.args: dict[str, Any] = {}
        if code is not None and not is_library(code.co_filename):
            self.args = {"file": code.co_filename, "line": code.co_firstlineno, "function": code.co_name}


class CallbackTimes:
    """Records the calls of callbacks."""

    def __init__(self, append: Callable[[Record], None]) -> None:
        self._append = append
        self._callbacks: list[Callback] = []
        self._long = 0

    def callback(self, name: str, code: CodeType | None) -> Callback:
        """Return a callback whose calls are recorded from now on."""
        self._callbacks.append(one := Callback(name, code))
        return one

    def ended(self, callback: Callback, start_ns: int, end_ns: int, step: int) -> None:
        """Record a call."""
        if end_ns - start_ns < LONG_NS or self._long >= MAX_LONG:
            callback.add(end_ns - start_ns)
        else:
            self._long += 1
            self._append((CALLBACK, callback.name, start_ns, end_ns, step, {"calls": 1, **callback.args}))

    def beat(self, now_ns: int) -> None:
        """Record the sums of the short calls, on the recorder's thread."""
        self._long = 0
        for one in list(self._callbacks):
            count, total = one.take()
            if count:
                self._append((CALLBACK, one.name, now_ns - total, now_ns, -1, {"calls": count, **one.args}))

    def forget(self) -> None:
        """Leave out the short calls so far."""
        for one in self._callbacks:
            one.take()
