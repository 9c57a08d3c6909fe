"""Time of functions that compiled code calls on the host: `jax.pure_callback`, `io_callback`, `jax.debug.callback`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from sm_profiler.formats.event_names import CALLBACK
from sm_profiler.hook.caller import is_library
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.steps import Record

LONG_NS = 1_000_000  # calls that take longer are events of their own
MAX_LONG = 200  # between two beats; more are summed up like the short ones
MAX_KNOWN = 100  # functions; JAX compares them, so that the same one must be wrapped only once


class _Host:
    """A function that is called on the host, and its short calls since the last beat."""

    __slots__ = ("args", "count", "name", "total_ns")

    def __init__(self, function: Any, kind: str) -> None:
        inner = function
        while isinstance(inner, functools.partial):
            inner = inner.func
        code = getattr(inner, "__code__", None)
        self.name = f"{str(getattr(inner, '__name__', type(inner).__name__)).replace('.', '_')}.{kind}"
        self.args: dict[str, Any] = {}
        self.count = self.total_ns = 0
        if code is not None and not is_library(code.co_filename):
            self.args = {"file": code.co_filename, "line": code.co_firstlineno, "function": code.co_name}


class HostCallbacks(Collector):
    """Times the functions; they may run on any thread."""

    name = "host callbacks"

    def __init__(
        self,
        append: Callable[[Record], None],
        step: Callable[[], int],
        failed: Callable[[Exception], None],
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        """Create the collector.

        Args:
            append: takes the records.
            step: returns the number of the step.
            failed: takes errors of the hook's own.
            clock: nanoseconds.
        """
        self._append = append
        self._step = step
        self._failed = failed
        self._clock = clock
        self._on = False  # recording has started
        self._long = 0
        self._hosts: list[_Host] = []
        self._known: dict[tuple[str, Any], Any] = {}  # kind and function → the function, timed

    def start(self) -> None:
        """Record calls from now on."""
        self._on = True

    def wrap(self, kind: str, original: Any) -> Any:
        """Return `pure_callback` or its like, which gets functions that report their calls."""

        @functools.wraps(original)
        def callback(*args: Any, **kwargs: Any) -> Any:
            try:
                if args and callable(args[0]):
                    args = (self._timed(kind, args[0]), *args[1:])
                elif callable(kwargs.get("callback")):
                    kwargs = {**kwargs, "callback": self._timed(kind, kwargs["callback"])}
            except Exception as error:  # noqa: BLE001 - fail open
                self._failed(error)
            return original(*args, **kwargs)

        return callback

    def _timed(self, kind: str, function: Any) -> Any:
        try:
            found = self._known.get((kind, function))
        except Exception:  # noqa: BLE001 - of the script's object: it has no hash, or cannot be compared
            return function
        if found is None:
            if len(self._known) >= MAX_KNOWN:
                return function
            found = self._known[kind, function] = self._time(function, _Host(function, kind))
        return found

    def _time(self, function: Any, host: _Host) -> Any:
        self._hosts.append(host)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self._clock()
            try:
                return function(*args, **kwargs)
            finally:
                if self._on:
                    try:
                        self._note(host, start, self._clock())
                    except Exception as error:  # noqa: BLE001 - fail open
                        self._failed(error)

        return timed

    def _note(self, host: _Host, start: int, end: int) -> None:
        if end - start < LONG_NS or self._long >= MAX_LONG:
            host.count += 1
            host.total_ns += end - start
        else:
            self._long += 1
            self._append((CALLBACK, host.name, start, end, self._step(), {"calls": 1, **host.args}))

    def beat(self) -> None:
        """Record the sums of the short calls."""
        self._long, now = 0, self._clock()
        for host in self._hosts:
            count, total = host.count, host.total_ns
            if count:
                host.count -= count
                host.total_ns -= total
                self._append((CALLBACK, host.name, now - total, now, -1, {"calls": count, **host.args}))

    def close(self) -> None:
        """Record the last sums, and no further calls: compiled code keeps the functions."""
        self.beat()
        self._on = False

    def forked(self) -> None:
        """Forget the parent's calls."""
        for host in self._hosts:
            host.count = host.total_ns = 0
