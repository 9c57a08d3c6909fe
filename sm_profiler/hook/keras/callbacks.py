"""The time that each callback of a training takes, by its class and method."""

from __future__ import annotations

import functools
import inspect
import threading
from importlib import import_module
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.hook.collector import Collector
from sm_profiler.hook.timed_calls import Callback, CallbackTimes

if TYPE_CHECKING:
    from sm_profiler.hook.patches import Patches
    from sm_profiler.hook.session import Session

PHASE = "callback"  # of the samples taken meanwhile
CACHE = "_sm_profiler_timed"


class Proxy:
    """A callback as its list calls it, with one method timed."""

    def __init__(self, callback: Any, name: str, timed: Any) -> None:
        self._callback = callback
        setattr(self, name, timed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._callback, name)


class TimedList(list[Any]):
    """The callbacks of a list while it calls one of their methods.

    Attributes:
        original: the callbacks themselves.
    """

    def __init__(self, of: list[Any], original: list[Any]) -> None:
        super().__init__(of)
        self.original = original

    def is_current(self, callbacks: list[Any]) -> bool:
        """Return whether these are still the list's callbacks."""
        own = self.original
        return len(own) == len(callbacks) and all(a is b for a, b in zip(own, callbacks, strict=True))


class Callbacks(Collector):
    """Times callbacks on the training thread.

    The list of callbacks is replaced while it calls them, so that the callbacks stay as they are.
    """

    name = "callbacks"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._base: Any = None
        self._methods: dict[str, Callback] = {}
        self._times = CallbackTimes(session.append)

    def install(self, patches: Patches, owner: Any) -> None:
        """Patch the list of callbacks."""
        self._base = import_module("keras").callbacks.Callback
        names = [name for name in vars(owner) if name.startswith("on_")]
        for name in names:
            inner = f"_{name}" if f"_{name}" in vars(owner) else name  # what a pool's thread may run
            patches.replace(owner, inner, functools.partial(self._wrap, name))

    def _wrap(self, name: str, original: Any) -> Any:
        session = self._session

        @functools.wraps(original)
        def method(callbacks: Any, *args: Any, **kwargs: Any) -> Any:
            cache = callbacks.__dict__.get(CACHE)
            if cache and cache.get(name, cache) is None and len(callbacks.callbacks) == cache.get("count"):
                return original(callbacks, *args, **kwargs)  # the usual case: none defines this method
            timed = None
            if not session.quiet and not session.is_off(self.name):
                try:
                    timed = self._timed(callbacks, name)
                except Exception as error:  # fail open
                    session.switch_off(self, error)
            if timed is None:
                return original(callbacks, *args, **kwargs)
            callbacks.callbacks = timed
            try:
                return original(callbacks, *args, **kwargs)
            finally:
                if callbacks.callbacks is timed:
                    callbacks.callbacks = timed.original

        return method

    def _timed(self, callbacks: Any, name: str) -> TimedList | None:
        """Return the list of callbacks with those methods timed that are worth it; None if there are none."""
        if threading.get_ident() != self._session.training_thread() or type(callbacks.callbacks) is not list:
            return None
        cache = callbacks.__dict__.setdefault(CACHE, {})
        known = cache.get(name, False)
        if known is not False and (known is None or known.original is callbacks.callbacks):
            if len(callbacks.callbacks) == cache["count"]:
                return known  # type: ignore[no-any-return]
            cache.clear()
        plain = callbacks.callbacks
        proxies = [self._proxy(one, name) for one in plain]
        timed = TimedList(proxies, plain) if any(a is not b for a, b in zip(plain, proxies, strict=True)) else None
        cache[name], cache["count"] = timed, len(plain)
        return timed

    def _proxy(self, callback: Any, name: str) -> Any:
        own = getattr(callback, name)
        function = inspect.unwrap(getattr(own, "__func__", own))
        if function is vars(self._base).get(name):
            inner = name.replace("_train_", "_")  # by default, the older name
            older = getattr(callback, inner, None)
            function = inspect.unwrap(getattr(older, "__func__", older)) if older is not None else None
            if inner == name or function is None or function is vars(self._base).get(inner):
                return callback
            name_of = inner
        else:
            name_of = name
        method = self._method(f"{type(callback).__name__}.{name_of}", function)
        return Proxy(callback, name, self._time(own, method))

    def _method(self, name: str, function: Any) -> Callback:
        known = self._methods.get(name)
        if known is None:
            known = self._methods[name] = self._times.callback(name, getattr(function, "__code__", None))
        return known

    def _time(self, original: Any, method: Callback) -> Any:
        session = self._session

        def timed(*args: Any, **kwargs: Any) -> Any:
            declared = session.sampler.declared if session.sampler else []
            declared.append(PHASE)
            aside = session.aside if threading.get_ident() == session.training_thread() else None
            if aside is not None:
                aside.depth += 1
            start = perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                end = perf_counter_ns()
                declared.pop()
                if aside is not None:
                    aside.leave(end - start)
                self._times.ended(method, start, end, session.tracker.train_number)

        return timed

    def beat(self) -> None:
        """Record the sums of the short calls, on the recorder's thread."""
        self._times.beat(perf_counter_ns())

    def close(self) -> None:
        """Record the last sums."""
        self.beat()

    def forked(self) -> None:
        """Forget the parent's calls."""
        self._methods, self._times = {}, CallbackTimes(self._session.append)
