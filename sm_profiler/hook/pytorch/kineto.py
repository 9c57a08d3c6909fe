"""Kineto, the library below torch.profiler: what it would do to a training without a profiler of its own.

Recent versions print `USDT:… profiler_start` to standard error whenever a profiler starts or stops; a detailed window would
add such lines to the training's output, and to its FailureReason.

Its first start leaves a thread that waits on a condition variable.  A forked child has the variable but not the thread, and
the variable's destructor, which runs when the child exits, waits for the thread for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LEVEL = "_ZN9libkineto6Logger14severityLevel_E"  # libkineto::Logger::severityLevel_
QUIET = 99


def exit_without_destructors() -> None:
    """Let this process, a forked child, exit without running the destructors of C++ libraries, as workers of multiprocessing do.

    Python's own exit comes before: its exit functions, and the flushing of its files.  C's files are flushed here.  The exit
    code is that of the process.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        library = ctypes.CDLL(None)
        library.on_exit(
            library["_exit"], None
        )  # called with the exit code; the last one to be registered is called first
        library["__cxa_atexit"](library.fflush, None, None)


def severity_level(torch: Any) -> ctypes.c_int | None:
    """Return Kineto's severity level, below which it logs nothing; None in builds that do not export it."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))  # loaded already
        return ctypes.c_int.in_dll(library, LEVEL)
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def quiet(torch: Any) -> Iterator[None]:
    """Suppress Kineto's log inside the block; profilers of the script log as ever."""
    level = severity_level(torch)
    if level is None:
        yield
        return
    owner, before = torch.autograd.profiler.profile, level.value
    prepare = owner._prepare_trace  # it initialises Kineto, which sets the level

    def _prepare_trace(*args: Any, **kwargs: Any) -> Any:
        nonlocal before
        level.value = before
        try:
            return prepare(*args, **kwargs)
        finally:
            before, level.value = level.value, QUIET

    owner._prepare_trace = _prepare_trace  # restored below
    level.value = QUIET
    try:
        yield
    finally:
        level.value = before
        owner._prepare_trace = prepare
