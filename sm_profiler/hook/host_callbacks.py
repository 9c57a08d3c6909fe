"""Functions on the host that compiled code calls: `jax.pure_callback`, `tf.numpy_function` and the like."""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from sm_profiler.formats.trace_writer import Span
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.guard import pass_on
from sm_profiler.hook.patches import timed
from sm_profiler.hook.timed_calls import CallbackTimes
from sm_profiler.hook.timed_calls import CallSum as Callback

MAX_KNOWN = 100  # functions; a framework compares them, so that each must be wrapped only once


class HostCallbacks(Collector):
    """Times the functions; they may run on any thread."""

    name = "host callbacks"

    def __init__(
        self,
        append: Callable[[Span], None],
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

    def wrap(self, kind: str, original: Any, keyword: str = "callback", leave: Callable[[], bool] | None = None) -> Any:
        """Return `pure_callback` or its like, which gets functions that report their calls.

        Args:
            kind: its name.
            original: the function.
            keyword: the argument that the function on the host is, if it is not the first.
            leave: whether the function of a call is none of a step's.
        """

        @functools.wraps(original)
        def callback(*args: Any, **kwargs: Any) -> Any:
            try:
                if leave is not None and leave():
                    pass
                elif args and callable(args[0]):
                    args = (self._timed(kind, args[0]), *args[1:])
                elif callable(kwargs.get(keyword)):
                    kwargs = {**kwargs, keyword: self._timed(kind, kwargs[keyword])}
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
        def ended(start_ns: int, _result: Any, _error: BaseException | None) -> None:
            if self._on:
                self._times.ended(host, start_ns, self._clock(), self._step())

        return timed(function, lambda *_args, **_kwargs: self._clock(), ended, self._failed)

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
