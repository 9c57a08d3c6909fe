"""Fail open: an internal error costs the collector in which it happened and one log line, and nothing else.

Exceptions of the script that pass through the hook's frames are no such errors, and must reach the script.  A signal
handler (a time limit, a scheduler's warning) runs between any two instructions, and so may an exception that another
thread sets.  Both may be raised while the hook works, where "fail open" would take them for its own errors.  An error
that the hook caused itself, also inside a library or an object of the script that it called, stays the hook's.
"""

from __future__ import annotations

import _thread
import contextlib
import dis
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from importlib import import_module
from inspect import CO_VARARGS
from types import CodeType, FrameType, FunctionType, MethodType, TracebackType
from typing import Any, TypeVar

import attrs

from sm_profiler import threads
from sm_profiler.printable import logger_for

Result = TypeVar("Result")

# Exceptions of the script.


_RAISES = {number for name, number in dis.opmap.items() if name in {"RAISE_VARARGS", "RERAISE"}}
_WITHOUT_TEXT = (StopIteration, StopAsyncIteration, MemoryError, AssertionError)  # that operations of Python raise
_DELIVERY_SECONDS = 0.001
_delivered: deque[BaseException] = deque(maxlen=8)  # set again by `deliver`
# Without signal's functions around them, which make an Enum's member of each of 64 numbers.
_SIGNALS = tuple(map(int, signal.valid_signals()))
_getsignal: Callable[[int], Any] = vars(import_module("_signal"))["getsignal"]
_handlers: set[CodeType] = set()  # code of all signal handlers that were found so far


def pass_on(error: BaseException) -> None:
    """Raise an error again if it is the script's. Call it first in each handler that "fails open"."""
    if is_foreign(error):
        raise error


def attempt(action: Callable[[], Result], failed: Callable[[Exception], None] = pass_on) -> Result | None:
    """Return the result of an action of the hook; None if it raises, and `failed` takes the error."""
    try:
        return action()
    except Exception as error:  # fail open
        failed(error)
        return None


def told(error: BaseException) -> str:
    """Return the first line of an error's text; "" if it has none, or the text of the script's class of errors raises."""
    return attempt(lambda: str.__str__(str(error)).partition("\n")[0][:300]) or ""


def is_foreign(error: BaseException) -> bool:
    """Return whether an exception was raised by a signal handler or a trace function, or set by another thread."""
    if threads.is_own():
        return False  # our threads are none of the script's
    if any(error is delivered for delivered in _delivered):
        return True
    find_handlers()
    trace, last = error.__traceback__, None
    while trace is not None:
        frame = trace.tb_frame
        if last is not None and (frame.f_code in _handlers or _interrupts(frame, last.tb_frame)):
            return True
        trace, last = trace.tb_next, trace
    return last is not None and _was_set(error, last)


def find_handlers() -> None:
    """Remember the signal handlers: one that raises may be registered no more, and may have lost its arguments."""
    found = [handler for handler in map(_getsignal, _SIGNALS) if type(handler) is not int]  # a default action is
    _handlers.update(filter(None, map(_code_of, found)))


def _code_of(value: Any) -> CodeType | None:
    """Return the code that a call of an object runs, without running any code of the script."""
    while isinstance(value, (MethodType, partial)):
        value = value.__func__ if isinstance(value, MethodType) else value.func
    if not isinstance(value, FunctionType):
        value = next((its["__call__"] for of in type(value).__mro__ if "__call__" in (its := vars(of))), None)
    return value.__code__ if isinstance(value, FunctionType) else None


def _interrupts(frame: FrameType, interrupted: FrameType) -> bool:
    """Return whether Python called a function between two instructions: it passes the interrupted frame as an argument."""
    code, found = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & CO_VARARGS)
    for name in code.co_varnames[:count]:
        value = found.get(name)
        if value is interrupted or (type(value) is tuple and any(item is interrupted for item in value)):
            return True
    return False


def _was_set(error: BaseException, last: TracebackType) -> bool:
    """Return whether another thread set the exception: it has no text, and the instruction there raises none."""
    if error.args or isinstance(error, _WITHOUT_TEXT):
        return False
    instructions, at = last.tb_frame.f_code.co_code, last.tb_lasti
    return 0 <= at < len(instructions) and instructions[at] not in _RAISES


def uninterrupted(take: Callable[[], Generator[int, Any, None]]) -> Callable[..., Any]:
    """Return a function of several arguments that a generator takes in turn, for callers that ignore exceptions.

    Python handles signals as a function begins, before it could catch anything. So the function that is called is C's:
    it resumes a generator inside a `try`. What is raised there is raised again on this thread, soon after, and `take`
    returns the generator of the next arguments.
    """

    def guarded() -> Generator[int, Any, None]:
        while True:
            try:
                yield from take()
            except GeneratorExit:  # it lasts as long as the process
                raise
            except BaseException as error:  # raised again once Python does not ignore it
                deliver(error)

    taker = guarded()
    next(taker)
    return partial(max, key=taker.send)  # max calls it with each argument


def deliver(error: BaseException) -> None:
    """Raise an exception on this thread soon, where Python does not ignore it."""
    error.__traceback__ = None  # its frames keep what is local to them alive
    _delivered.append(error)
    threads.start(_set, threading.get_ident(), error, name="sm-profiler-deliver")


def _set(ident: int, error: BaseException) -> None:
    time.sleep(_DELIVERY_SECONDS)  # the callback has returned by then; otherwise it delivers the exception again
    try:
        import ctypes  # hardly ever needed

        again = type(
            type(error).__name__, (type(error),), {"__new__": lambda _cls: error, "__init__": lambda _self: None}
        )
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(again))
    except Exception:  # a class that cannot be derived from, or a Python without ctypes
        _thread.interrupt_main()


# Errors of the hook.


logger = logger_for("sm_profiler")


@attrs.define(eq=False)
class Guard:
    """Failures of collectors: the first is logged as a warning, all are listed in the report.

    Attributes:
        failures: collector → its first error, in one line.
        count: number of errors caught.
    """

    failures: dict[str, str] = attrs.field(factory=dict)
    count: int = 0

    def failed(self, collector: str, error: BaseException) -> None:
        """Switch a collector off; an error of the script that passed through the hook is raised again."""
        pass_on(error)
        self.count += 1
        if collector not in self.failures:
            self.failures[collector] = f"{type(error).__name__}: {told(error)}"
            text = f"{collector} switched off, training continues: {self.failures[collector]}"
            if len(self.failures) == 1:
                self.warn(text)
            else:  # a log full of warnings helps less than a single line; the report lists them all
                logger.info("sm-profiler: %s", text)
                threads.hide()

    def warn(self, text: str) -> None:
        """Log one line; an error in a log handler counts and is otherwise ignored."""
        try:
            logger.warning("sm-profiler: %s", text)
        except Exception as error:  # a user's handler may raise anything
            pass_on(error)
            self.count += 1
        threads.hide()

    def is_off(self, collector: str) -> bool:
        """Return whether a collector has failed."""
        return collector in self.failures


def run_bounded(action: Callable[[], Result], seconds: float, message: str) -> Result:
    """Run an action on a daemon thread, and return its result.

    Args:
        action: a call that may hang; it is abandoned then, and must not hold locks that others need.
        seconds: how long to wait for it.
        message: text of the error if it takes longer.

    Raises:
        TimeoutError: it took longer.
        Exception: what the action raised.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((True, action()))
        except Exception as error:  # raised again by the caller's thread
            outcome.extend((False, error))

    try:
        thread = threads.start(run, name="sm-profiler-bounded")
    except RuntimeError:  # the interpreter is shutting down and starts no threads
        return action()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError(message)
    succeeded, result = outcome
    if not succeeded:
        raise result
    return result  # type: ignore[no-any-return] # of the action's type


_local = threading.local()


class _Last:
    """Calls an action when the thread's own variables are deleted, which is the last that it does."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be shutting down
            self._action()


def at_thread_end(action: Callable[[], None]) -> None:
    """Call an action at the end of this thread, on it; a further action replaces the first."""
    last = getattr(_local, "last", None)
    if last is not None:
        last._action = action  # of this module; deleting it would call it
    else:
        _local.last = _Last(action)
