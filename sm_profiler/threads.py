"""Our threads in the process of a script, which must not meet them; events that signal handlers may set.

A script may wait for all threads that `threading` lists, so ours are unknown to it.  And it may block a signal to take it
from the system by itself: a thread that does not block it as well would receive it, and the process would end.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import weakref
from _thread import allocate_lock, get_ident, get_native_id, start_new_thread
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")

# Those of an error of the thread itself end the process if it blocks them.
_BLOCKED = signal.valid_signals() - {
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS,
}  # fmt: skip
# A script may replace any function, even by a function that raises.
_main_thread = threading.main_thread
# Without signal's function around it: code of Python, which torch.compile would trace inside a compiled region.
_sigmask: Callable[..., set[int]] = vars(import_module("_signal"))["pthread_sigmask"]
_own: dict[int, tuple[str, int]] = {}  # name and kernel's id of our threads that run, by Python's id
_listed: dict[int, Any] = vars(threading).get("_active", {})  # the threads that `threading` lists
os.register_at_fork(after_in_child=_own.clear)  # where they do not exist


class Thread:
    """A thread that ends with the process, if not before.

    Attributes:
        name: for who debugs the profiler.
        ident: Python's id, once it runs.
    """

    def __init__(self, target: Callable[..., object], *args: Any, name: str) -> None:
        self.name = name
        self._target, self._args = target, args
        self.ident: int | None = None
        self._pid = 0
        self._running = allocate_lock()  # until it ends

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the process may have no further thread.
        """
        self._pid = os.getpid()
        self._running.acquire()
        try:
            with_blocked_signals(start_new_thread, self._run, ())
        except RuntimeError:
            self._running.release()
            raise

    def is_alive(self) -> bool:
        """Return whether the thread runs; it does not in a forked child."""
        return self._running.locked() and self._pid == os.getpid()

    def join(self, timeout: float = -1) -> None:
        """Wait until the thread has ended, but no longer than some seconds, if they are given."""
        if self.is_alive() and self._running.acquire(timeout=timeout):
            self._running.release()

    def _run(self) -> None:
        self.ident = get_ident()
        _own[self.ident] = self.name, get_native_id()
        try:
            self._target(*self._args)
        except BaseException:  # noqa: S110 - an action that fails has reported it, and Python would print it
            pass
        finally:
            hide()
            _own.pop(get_ident(), None)
            self._running.release()


def start(target: Callable[..., object], *args: Any, name: str) -> Thread:
    """Start a thread.

    Raises:
        RuntimeError: the process may have no further thread.
    """
    thread = Thread(target, *args, name=name)
    thread.start()
    return thread


def is_own(ident: int | None = None) -> bool:
    """Return whether a thread is ours; by default, whether this is one."""
    return (get_ident() if ident is None else ident) in _own


def running() -> dict[int, str]:
    """Return our threads: their names by the kernel's id."""
    return {number: name for name, number in list(_own.values())}


def hide() -> None:
    """Remove this thread from those that `threading` lists, if it is ours.

    It gets there when anything asks for the current thread: log handlers, and finalizers of the script, which run on
    the thread that happens to collect their objects.
    """
    if get_ident() in _own:
        _listed.pop(get_ident(), None)
        _repair()


def _repair() -> None:
    """Put `threading` back if one of our threads has imported it anew, since the script had removed it.

    Until Python 3.12, the thread that imports it is its main thread, for whose end the process would wait as it exits.
    """
    again = sys.modules.get("threading")
    if again is threading or type(again) is not ModuleType:
        return
    main = vars(again).get("_main_thread")
    if getattr(main, "_ident", None) in _own:
        sys.modules["threading"] = threading
        lock = getattr(main, "_tstate_lock", None)
        if lock is not None and lock.locked():
            vars(again)["_shutdown_locks"].discard(lock)
            lock.release()  # the process may wait for it already


def is_main() -> bool:
    """Return whether this is the main thread; unlike `threading.current_thread()`, it makes no thread known."""
    return get_ident() == _main_thread().ident


def with_blocked_signals(call: Callable[..., Result], *args: Any) -> Result:
    """Let threads that a call starts, ours or a library's, leave all signals to those of the script.

    It is no context manager: a handler that raises as Python enters or leaves one would leave the signals blocked.
    """
    before = _sigmask(signal.SIG_BLOCK, ())  # a handler may raise here, and then nothing has changed
    try:
        _sigmask(signal.SIG_BLOCK, _BLOCKED)
        return call(*args)
    finally:
        _sigmask(signal.SIG_SETMASK, before)


def unblock_signals() -> None:
    """Take signals again, in a new process: it has inherited what the thread that started it blocks."""
    with suppress(ValueError):
        _sigmask(signal.SIG_UNBLOCK, _BLOCKED)


class StopEvent(Protocol):
    """The part of `threading.Event` that a loop needs to end in time."""

    def is_set(self) -> bool:
        """Return whether the loop must end."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set, for `timeout` seconds at most; return whether it is."""


class SignalEvent:
    """An event with the methods of `threading.Event`, any of which may be interrupted by a handler that calls `set`.

    The event is set while its pipe holds a byte.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._close = weakref.finalize(self, _close, self._read, self._write)

    def set(self) -> None:
        """Set the event."""
        with suppress(BlockingIOError):  # a full pipe is set already
            os.write(self._write, b"\0")

    def clear(self) -> None:
        """Reset the event."""
        with suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set, for `timeout` seconds at most; return whether it is."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        return bool(poll.poll(None if timeout is None else 1000 * max(timeout, 0.0)))

    def fileno(self) -> int:
        """Return the file descriptor that is readable while the event is set."""
        return self._read

    def set_on(self, *numbers: signal.Signals) -> None:
        """Set the event whenever one of these signals arrives; must be called in the main thread."""
        for number in numbers:
            signal.signal(number, lambda *_: self.set())


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
