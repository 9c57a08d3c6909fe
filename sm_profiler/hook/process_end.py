"""End of this process, observed while it exits.

CPython keeps the exception that ends the main script in `sys.last_value` before it prints it, and one
that ends a process of multiprocessing is still being handled when that process's exit functions run.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from sm_profiler.formats.process_end import (
    COMPLETED,
    CRASHED,
    END,
    END_CODE,
    END_ERROR,
    END_PLACE,
    EXITED,
    STOP_SIGNALS,
    STOPPED,
    error_line,
)
from sm_profiler.hook.caller import is_library
from sm_profiler.hook.cells import shown
from sm_profiler.hook.secrets import masked_message

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
    place = place_of(error)
    return {
        END: CRASHED,
        END_ERROR: error_line(error, masked_message),
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


def place_of(error: BaseException) -> str:
    """Return the innermost line of the user's code that an exception passed, as `train.py:12`; "" if there is none."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if not is_library(frame.f_code.co_filename):
            found = f"{Path(shown(frame.f_code.co_filename)).name}:{line}"
    return found


def _unhandled() -> BaseException | None:
    """Return the exception that ended the script; None for one that an interactive session has shown."""
    if hasattr(sys, "ps1"):
        return None
    error = getattr(sys, "last_value", None)
    trace = getattr(sys, "last_traceback", None)
    if not isinstance(error, BaseException) or not isinstance(trace, TracebackType):
        return None
    return error if trace.tb_frame.f_globals.get("__name__") in _SCRIPT else None
