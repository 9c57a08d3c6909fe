"""Calls of functions that the script compiles with `jax.jit`, and waiting for their results."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from types import FrameType
from typing import TYPE_CHECKING, Any

from sm_profiler.hook.caller import MAX_DEPTH, is_library
from sm_profiler.hook.jax.loop import Compiled, Loop
from sm_profiler.hook.steps import METER_MAX_NS

if TYPE_CHECKING:
    from sm_profiler.hook.jax.compilations import Compilations
    from sm_profiler.hook.session import Session

# What scripts and libraries use of a compiled function.
_ATTRIBUTES = (
    "lower",
    "trace",
    "eval_shape",
    "clear_cache",
    "_cache_size",
    "_clear_cache",
    "_cache_miss",
    "_fun",
    "_jit_info",
)
_PARTS = 64  # of a call's arguments that are described
_LONGEST = 40  # characters of a value
MIN_WAIT_NS = 20_000  # a shorter one found its results ready


class Calls:
    """Wraps what `jax.jit` returns, and what blocks until results are there."""

    def __init__(self, session: Session, jax: Any, loop: Loop, compilations: Compilations) -> None:
        self._session = session
        self._loop = loop
        self._compilations = compilations
        self._inside = False  # an outermost call, or waiting, is running
        self._jax = jax
        self._results: list[Any] | None = None  # weak references to those of the last call, while they are needed
        self._clock = perf_counter_ns
        self._thread = threading.main_thread().ident

    def forked(self) -> None:
        """Forget what runs in the parent."""
        self._inside, self._results = False, None
        self._thread = threading.main_thread().ident
        self._loop.reset()

    def keep_results(self, *, on: bool) -> None:
        """Remember the results of the last call from now on, or no longer."""
        self._results = (self._results or []) if on else None

    def settle(self) -> None:
        """Wait until what was called so far has run: JAX returns before."""
        arrays = [array for array in (reference() for reference in self._results or ()) if array is not None]
        inside, self._inside = self._inside, True
        try:
            self._jax.block_until_ready([array for array in arrays if not array.is_deleted()])
        finally:
            self._inside = inside

    # jit

    def wrap_jit(self, original: Any) -> Any:
        """Return `jax.jit` or `jax.pmap` whose results report their calls."""

        @functools.wraps(original)
        def jit(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            try:
                if not self._session.quiet and is_users(sys._getframe(1)):  # noqa: SLF001 - who compiles
                    return self._observed(made)
            except Exception as error:  # noqa: BLE001 - fail open
                self._session.guard.failed("jit", error)
            return made

        return jit

    def _observed(self, made: Any) -> Any:
        if hasattr(made, "lower"):
            return self._wrap(made)
        if not callable(made):
            return made

        @functools.wraps(made)
        def decorator(*args: Any, **kwargs: Any) -> Any:  # jax.jit(static_argnums=…)
            return self._observed(made(*args, **kwargs))

        return decorator

    def _wrap(self, made: Any) -> Any:
        session, loop, compilations, tracker = self._session, self._loop, self._compilations, self._session.tracker
        function = Compiled(str(getattr(made, "__name__", "") or "jit"))
        get_ident, clock = threading.get_ident, self._clock

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside or session.quiet or get_ident() != self._thread:
                return made(*args, **kwargs)
            self._inside = True
            start = clock()
            try:
                compilations.running = function, (args, kwargs)
                loop.begins(function, start, (args, kwargs))
                begun = clock()
            except Exception as error:  # noqa: BLE001 - fail open
                begun = start
                session.fail(error)
            try:
                result = made(*args, **kwargs)
            except BaseException:
                self._inside, compilations.running = False, None
                raise
            end = clock()
            try:
                self._returned(function, result, start, end)
                if tracker.metering:
                    tracker.own_ns += min(begun - start, METER_MAX_NS) + min(clock() - end, METER_MAX_NS)
            except Exception as error:  # noqa: BLE001 - fail open
                session.fail(error)
            self._inside = False
            return result

        functools.update_wrapper(call, made)
        for attribute in _ATTRIBUTES:
            if hasattr(made, attribute):
                setattr(call, attribute, getattr(made, attribute))
        return call

    def _returned(self, function: Compiled, result: Any, start_ns: int, end_ns: int) -> None:
        self._compilations.running = None
        self._loop.ended(function, function.name, start_ns, end_ns)
        if not function.settled:
            self._loop.returned(function, result)
        if self._results is not None:
            arrays = [leaf for leaf in self._jax.tree_util.tree_leaves(result) if isinstance(leaf, self._jax.Array)]
            self._results = [weakref.ref(array) for array in arrays]

    # waiting

    def wrap_wait(self, name: str, original: Any) -> Any:
        """Return a function that reports how long it blocks."""
        session, loop, get_ident, clock = self._session, self._loop, threading.get_ident, self._clock

        def wait(*args: Any, **kwargs: Any) -> Any:
            if self._inside or session.quiet or get_ident() != self._thread:
                return original(*args, **kwargs)
            self._inside = True
            start = clock()
            try:
                return original(*args, **kwargs)
            finally:
                end = clock()
                self._inside = False
                try:
                    if end - start >= MIN_WAIT_NS:
                        loop.ended(None, name, start, end)
                except Exception as error:  # noqa: BLE001 - fail open
                    session.fail(error)

        for attribute in ("__doc__", "__name__", "__module__"):  # methods in C++ have no text in some of them
            if isinstance(text := getattr(original, attribute, None), str):
                setattr(wait, attribute, text)
        return wait


def is_users(frame: FrameType | None) -> bool:
    """Return whether the program compiles a function, itself or through a library, and not a library as it is imported."""
    for _ in range(MAX_DEPTH):
        if frame is None:
            break
        path = frame.f_code.co_filename
        if path.startswith("<frozen importlib"):
            return False
        if not is_library(path):
            return True
        frame = frame.f_back
    return False


def describe(flatten: Callable[[Any], Any], show: Callable[[Any], str], arguments: Any) -> dict[str, str]:
    """Return place → type and shape, or value, of each of a call's arguments."""
    found = {}
    for path, leaf in flatten(arguments)[0][:_PARTS]:
        shape, kind = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if shape is not None and kind is not None:
            text = f"{kind}[{','.join(map(str, shape))}]"
        else:
            text = repr(leaf)[:_LONGEST] if isinstance(leaf, (bool, int, float, str)) else type(leaf).__name__
        found[f"argument {show(path[1:2]).strip('[]')}{show(path[2:])}"] = text
    return found
