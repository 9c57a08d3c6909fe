"""End of this process, observed while it exits, what is written when no exit function sees it, and files of killed processes.

CPython keeps the exception that ends the main script in `sys.last_value` before it prints it, and an exception
that ends a process of multiprocessing is still being handled when that process's exit functions run.  `os._exit` calls no
exit functions, so it is wrapped.  After `sys.exit`, only C's `exit` is given the code: see `record_exit_code`.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import functools
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from sm_profiler.descriptors import moved_up, open_descriptor
from sm_profiler.formats.layout import EXIT_FOLDER, IGNORED_FOLDER, LOADING_FOLDER, STOP_FOLDER
from sm_profiler.formats.process_end import (
    COMPLETED,
    CRASHED,
    END,
    END_CODE,
    END_ERROR,
    END_PLACE,
    END_STEP,
    END_US,
    EXITED,
    STOP_SIGNALS,
    STOPPED,
    error_line,
    message_of,
    remote_traceback,
)
from sm_profiler.formats.trace_recovery import recover_traces
from sm_profiler.formats.trace_writer import write_record
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.frames import is_library, shown
from sm_profiler.hook.patches import Patches
from sm_profiler.hook.secrets import masked_message

_FRAME = re.compile(r'^ +File "([^"\n]+)", line (\d+)', re.MULTILINE)  # of a traceback's text
_SCRIPT = ("__main__", "runpy")  # modules of the outermost frame of an exception that ends a script


def how_it_ends() -> dict[str, Any]:
    """Return the arguments of the process's record about its end, for an exit function."""
    error = sys.exc_info()[1] or _unhandled()
    code: int | None = None
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        error = error.__context__
    if error is None:
        return {END: EXITED} if code is None else {END: CRASHED if code else COMPLETED, END_CODE: code}
    if code == 0:
        return {END: COMPLETED, END_CODE: 0}
    if isinstance(error, KeyboardInterrupt):
        return {END: STOPPED, END_ERROR: "KeyboardInterrupt"}
    if type(error).__name__ == "SignalException" and getattr(error, "sigval", None) in STOP_SIGNALS:
        return {END: STOPPED}  # torchrun turns a signal into this exception
    line, place = line_and_place(error, masked_message)
    return {
        END: CRASHED,
        END_ERROR: line,
        **({END_PLACE: place} if place else {}),
        END_CODE: 1 if code is None else code,
    }


def how_it_leaves(code: int) -> dict[str, Any]:
    """Return the arguments of the record of a process that leaves by `os._exit`, perhaps for an exception it handles."""
    if not code:
        return {END: COMPLETED, END_CODE: 0}
    state = STOPPED if code - 128 in STOP_SIGNALS else CRASHED
    found = how_it_ends() if sys.exc_info()[1] is not None else {}
    return {**found, END: found.get(END) if found.get(END) == STOPPED else state, END_CODE: code}


def record_failed_start(
    root: Path, source: str, process: Mapping[str, Any], now_us: int, *, code: int | None = None
) -> None:
    """Write how this process ends before its first step; nothing of one that does not fail.

    Args:
        code: it leaves by `os._exit` with this code; None in an exit function.

    Raises:
        OSError: it cannot be written.
    """
    record = _before_first_step(process, now_us, code)
    is_rank = process.get("rank") is not None
    if record[END] == CRASHED or (record[END] == STOPPED and not is_rank):  # the launcher stops the other ranks
        write_record(root, source, record)
    elif record[END] == EXITED and (is_rank or (root / IGNORED_FOLDER).is_dir()):  # any tool may import a framework
        record_exit_code(root, source, record)


def record_end(root: Path, source: str, process: Mapping[str, Any], now_us: int) -> None:
    """Write how this process ends without a step, for an exit function.

    Raises:
        OSError: it cannot be written.
    """
    record = _before_first_step(process, now_us)
    write_record(root, source, record)
    if record[END] == EXITED:
        record_exit_code(root, source, record)


def _before_first_step(process: Mapping[str, Any], now_us: int, code: int | None = None) -> dict[str, Any]:
    end = how_it_ends() if code is None else how_it_leaves(code)
    return {**process, "start_us": process["loaded_us"], **end, END_US: now_us, END_STEP: 0}


def line_and_place(error: BaseException, mask: Callable[[str], str]) -> tuple[str, str]:
    """Return an exception as one line, and the innermost line of the user's code that it passed.

    What failed in another process first passed lines there.

    Args:
        mask: what hides secrets in the line.

    Returns:
        The line, and the place as `train.py:12`; "" if there is none.
    """
    message = message_of(error)
    passed = [(frame.f_code.co_filename, str(line)) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [one for one in (*passed, *_FRAME.findall(remote_traceback(message))) if not is_library(one[0])]
    return error_line(error, message, mask), f"{Path(shown(own[-1][0])).name}:{own[-1][1]}" if own else ""


def _unhandled() -> BaseException | None:
    """Return the exception that ended the script; None for an exception that an interactive session has shown."""
    if hasattr(sys, "ps1"):
        return None
    error = getattr(sys, "last_value", None)
    trace = getattr(sys, "last_traceback", None)
    if not isinstance(error, BaseException) or not isinstance(trace, TracebackType):
        return None
    return error if trace.tb_frame.f_globals.get("__name__") in _SCRIPT else None


# `os._exit`.

CODES = range(-(2**31), 2**31)  # that `os._exit` takes; with others it raises, and the process goes on


class Leaving(Collector):
    """Wraps `os._exit`.

    Args:
        leave: takes the exit code before the process is gone.
        failed: takes the name of this collector and an error of `leave`.
    """

    name = "os._exit"
    follows_steps = False

    def __init__(self, leave: Callable[[int], None], failed: Callable[[str, Exception], None]) -> None:
        self._leave = leave
        self._patches = Patches(functools.partial(failed, self.name))

    def install(self) -> None:
        """Wrap the function."""
        self._patches.around(os, "_exit", self._leaves)

    def _leaves(self, *args: Any, **kwargs: Any) -> None:
        code = args[0] if args else kwargs.get("status")
        if isinstance(code, int) and code in CODES:
            self._leave(code & 0xFF)

    def failed(self) -> None:
        """Restore the function."""
        self._patches.remove()

    def exit(self) -> None:
        """Restore the function."""
        self._patches.remove()


# Signals that ask a process to stop.


class StopSignals(Collector):
    """Marks that SIGTERM or SIGHUP ends this process, which no Python code sees: for its record, it was not just killed.

    The signals keep their default action. Before it, a handler of faulthandler, which is C's, writes where the process is
    to a file (`formats.trace_recovery`), behind the record of the process: each signal has its own. A handler of the script
    replaces it.

    Args:
        place: returns the profile's folder and the name of this process in it.
        describe: returns the record of the process.
        later: runs an action on the recorder's thread, since a slow disk must not stall the training.
        failed: takes the name of this collector and an error.
    """

    name = "stop signals"
    follows_steps = False

    def __init__(
        self,
        place: Callable[[], tuple[Path, str]],
        describe: Callable[[], Mapping[str, Any]],
        later: Callable[[Callable[[], None]], None],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._place, self._describe, self._later, self._failed = place, describe, later, failed
        self._files: dict[int, tuple[Path, IO[bytes]]] = {}
        self._handlers: dict[int, tuple[int, weakref.ref[_File]]] = {}  # address, and what the registration keeps alive
        self._paused: tuple[int, ...] = ()
        self._at_fork = False
        self._beginning = threading.Lock()

    def start_loading(self) -> None:
        """Open the files of a process that makes no step yet, in the folder of a job: any tool may import a framework."""
        with contextlib.suppress(OSError):
            if (self._place()[0] / IGNORED_FOLDER).is_dir():
                self._begin(LOADING_FOLDER)

    def start(self) -> None:
        """Open the files."""
        self._later(self._begin)

    def _begin(self, folder: str = STOP_FOLDER) -> None:
        try:
            with self._beginning:
                self._install(folder)
        except OSError:  # the profile cannot be written, which the recorder reports
            self._remove()
        except Exception as error:  # fail open
            self._failed(self.name, error)
            self._remove()

    def _install(self, folder: str) -> None:
        if self._files and folder == LOADING_FOLDER:
            return  # the first step was quicker
        root, source = self._place()
        process = dict(self._describe())
        process["start_us"] = process["start_us"] or process["loaded_us"]
        self.exit()
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in (signal.SIGTERM, signal.SIGHUP):
            path = root / folder / f"{source}_{os.getpid()}_{int(number)}"
            file = os.fdopen(moved_up(open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)), "wb", buffering=0)
            self._files[number] = path, file
            file.write(json.dumps(process).encode() + b"\n")
        self._register(self._files)
        if not self._at_fork:
            # A child that is ended at once must not leave the mark: a loader's worker is, as a matter of course.
            os.register_at_fork(before=self._pause, after_in_parent=self._resume)
            self._at_fork = True

    def _register(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self._files and _handler_of(number) == 0:
                faulthandler.register(number, file := _File(self._files[number][1]), all_threads=False, chain=True)
                self._handlers[number] = _handler_of(number), weakref.ref(file)

    def _pause(self) -> None:
        self._paused = tuple(self._handlers)
        self._unregister()

    def _resume(self) -> None:
        self._register(self._paused)

    def _unregister(self) -> None:
        for number, (handler, file) in self._handlers.items():
            if _handler_of(number) == handler and file() is not None:  # otherwise, the script's would be lost
                faulthandler.unregister(number)
        self._handlers.clear()

    def _remove(self) -> None:
        self._unregister()
        for _, file in self._files.values():
            file.close()
        self._files.clear()

    def forked(self) -> None:
        """Forget the files in a child, in which the signals are as without the hook."""
        self._remove()

    def failed(self) -> None:
        """Restore the signals."""
        self._remove()

    def exit(self) -> None:
        """Restore the signals, and remove the files."""
        paths = [path for path, _ in self._files.values()]
        self._remove()
        for path in paths:
            with contextlib.suppress(OSError):  # the folder is gone
                path.unlink()


class _File:
    """The file of a registration with faulthandler, which keeps this object until another replaces it: the script's."""

    def __init__(self, file: IO[bytes]) -> None:
        self.fileno, self.flush = file.fileno, file.flush


@functools.cache
def _c_library() -> ctypes.CDLL:  # opening it takes 0.1 ms, which each fork would pay several times
    return ctypes.CDLL(None)


def _handler_of(number: int) -> int:
    """Return the address of a signal's handler, with which C's `struct sigaction` begins; 0 for the default action."""
    action = ctypes.create_string_buffer(1024)
    if _c_library().sigaction(number, None, action) != 0:
        return -1
    return int.from_bytes(action.raw[: ctypes.sizeof(ctypes.c_void_p)], sys.byteorder)


# The exit code.


_UNBUFFERED = 2  # _IONBF


def record_exit_code(root: Path, source: str, process: Mapping[str, Any]) -> None:
    """Have the exit code of this process appended to its record as the process exits; without glibc, do nothing.

    When Python calls exit functions, it has cleared the SystemExit, and only C's `exit` is given the code.  glibc passes it
    to functions that were registered with `on_exit`.  Python code cannot run any more by then, but `fputc` can: it appends
    the code, as one byte, to the file with the record.  Other processes of the job convert it to a trace file once this process
    is gone (`formats.trace_recovery`).

    Raises:
        OSError: the folder cannot be written.
    """
    library = _c_library()
    try:
        on_exit, fputc = library.on_exit, library.fputc
    except AttributeError:  # another C library
        return
    path = root / EXIT_FOLDER / f"{source}_{os.getpid()}_{time.time_ns()}"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = moved_up(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644))
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process is gone, for other nodes
    try:
        os.write(file, json.dumps(process).encode() + b"\n")
    except OSError:
        path.unlink()
        os.close(file)
        raise
    library.fdopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(library.fdopen(file, b"a"))
    # A destructor of a C++ library may end the process before buffers are written.
    library.setvbuf(stream, None, _UNBUFFERED, 0)
    on_exit(fputc, stream)


# Files that killed processes left open.


def complete(root: Path, node: str) -> None:
    """Complete the trace files of this node's processes that have ended.

    With the managed service, our monitor does not run on the node, so a rank does that when it starts again or ends, and at
    its end a process that has waited for others, such as torchrun; the service uploads the files.
    """
    recover_traces(root, node, stopped=False)
