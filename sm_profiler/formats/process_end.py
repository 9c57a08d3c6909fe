"""End of a process in its `sm_profiler/process` record: names of the states, and an error as one bounded line."""

from __future__ import annotations

import signal
from collections.abc import Callable

from sm_profiler.printable import cut, printable

COMPLETED = "completed"
EXITED = "exited"  # by itself, without an exception; its exit code is unknown
CRASHED = "crashed"
KILLED = "killed"
OUT_OF_MEMORY = "out_of_memory"
INTERRUPTED = "interrupted"
STOPPED = "stopped"
RUNNING = "running"
UNKNOWN = "unknown"

STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})  # that ask a process to stop
_USUAL = {  # what it usually means that a signal ended a process
    signal.SIGABRT: "native code gave up, as NCCL's watchdog does after its timeout",
    signal.SIGSEGV: "native code used memory that it must not",
    signal.SIGBUS: "memory could not be backed, as when /dev/shm is full",
    signal.SIGILL: "native code was built for another processor",
}

# Arguments of the record.
END, END_ERROR, END_PLACE, END_CODE, END_US, END_STEP, OOM_KILLS = (
    "end",
    "end_error",
    "end_place",
    "end_code",
    "end_us",
    "end_step",
    "oom_kills",
)

NEVER_STARTED = "never started"  # state of the profiler, which a changed configuration has switched on

MAX_ERROR = 300  # characters
_READ = 4000  # characters of a message that are read
_TRACEBACK, _MAX_TRACEBACK = "Traceback (most recent call last):", 1 << 16  # its beginning; characters that are read


def message_of(error: BaseException) -> str:
    """Return an exception's text; "" if it has none, or fails.

    Read it once: that runs code of the script, which may print, or take its time.
    """
    try:
        return str(error).strip()
    except (Exception, SystemExit):  # an exception class of the script may override a method and fail in it, or exit
        return ""


def error_line(error: BaseException, message: str, mask: Callable[[str], str] = str) -> str:
    """Return an exception's type and the first line of its message, as a traceback ends; bounded, and safe to print.

    Args:
        message: its `message_of`.
        mask: what hides secrets in the line before it is cut.
    """
    kind = type(error)
    module = "" if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}."
    first = next((line.strip() for line in message[:_READ].splitlines() if line.strip()), "")
    line = f"{module}{kind.__qualname__}: {first}" if first else f"{module}{kind.__qualname__}"
    inner = remote_traceback(message).splitlines()
    return bounded_line(mask(next((one for one in inner[1:] if one and not one[0].isspace()), line)))


def remote_traceback(message: str) -> str:
    """Return the traceback of another process or thread that is an exception's message; "" for none.

    So torch raises what failed in a DataLoader's worker again: the exception itself names only the worker.
    """
    _, header, found = message[-_MAX_TRACEBACK:].rpartition(_TRACEBACK)
    return f"{header}{found}" if header else ""


def bounded_line(text: str) -> str:
    """Return a text as one printable line of at most `MAX_ERROR` characters."""
    return cut(printable(" ".join(text[:_READ].split())), MAX_ERROR)


def signal_name(code: int | None) -> str:
    """Return the signal of an exit code; "" for none."""
    number = (code or 0) - 128
    return signal.Signals(number).name if number in {known.value for known in signal.Signals} else ""


def usual_cause(code: int | None) -> str:
    """Return what it usually means that a process ended with an exit code; "" if that is not known."""
    name = signal_name(code)
    return _USUAL.get(signal.Signals[name], "") if name else ""
