"""Time of functions that compiled code calls on the host: `jax.pure_callback`, `io_callback`, `jax.debug.callback`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from sm_profiler.hook.call_sums import Callback, CallbackTimes
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.foreign import pass_on
from sm_profiler.hook.steps import Record

MAX_KNOWN = 100  # functions; JAX compares them, so that the same one must be wrapped only once


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
        self._times = CallbackTimes(append)
        self._step = step
        self._failed = failed
        self._clock = clock
        self._on = False  # recording has started
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
            except Exception as error:  # fail open
                self._failed(error)
            return original(*args, **kwargs)

        return callback

    def _timed(self, kind: str, function: Any) -> Any:
        try:
            found = self._known.get((kind, function))
        except Exception as error:  # of the script's object: it has no hash, or cannot be compared
            pass_on(error)
            return function
        if found is None:
            if len(self._known) >= MAX_KNOWN:
                return function
            found = self._known[kind, function] = self._time(function, self._callback(function, kind))
        return found

    def _callback(self, function: Any, kind: str) -> Callback:
        inner = function
        while isinstance(inner, functools.partial):
            inner = inner.func
        name = str(getattr(inner, "__name__", type(inner).__name__)).replace(".", "_")
        return self._times.callback(f"{name}.{kind}", getattr(inner, "__code__", None))

    def _time(self, function: Any, host: Callback) -> Any:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self._clock()
            try:
                return function(*args, **kwargs)
            finally:
                if self._on:
                    try:
                        self._times.ended(host, start, self._clock(), self._step())
                    except Exception as error:  # fail open
                        self._failed(error)

        return timed

    def beat(self) -> None:
        """Record the sums of the short calls."""
        self._times.beat(self._clock())

    def close(self) -> None:
        """Record the last sums, and no further calls: compiled code keeps the functions."""
        self.beat()
        self._on = False

    def forked(self) -> None:
        """Forget the parent's calls."""
        self._times.forget()
