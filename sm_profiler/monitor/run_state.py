"""State of `sm-profiler run` in the profile's folder: how it ended, for a report that follows it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.formats.layout import IGNORED_FOLDER
from sm_profiler.formats.process_end import (
    COMPLETED,
    CRASHED,
    KILLED,
    OUT_OF_MEMORY,
    RUNNING,
    STOP_SIGNALS,
    STOPPED,
    UNKNOWN,
    signal_name,
)
from sm_profiler.monitor.place import release
from sm_profiler.processes import start_time
from sm_profiler.storage import LocalStorage

STATE_FILE = f"{IGNORED_FOLDER}/run-state"  # JSON; neither uploaded nor read as data
_MAX_BYTES = 4096


@attrs.frozen
class RunState:
    """One run.

    Attributes:
        pid: process of `sm-profiler run`.
        started: its start time, which distinguishes it from a later process with the same pid.
        exit_code: exit code of the script; None while it runs.
        stopped: it was asked to stop: Ctrl-C, or SIGTERM.
        out_of_memory: the kernel killed a process of its cgroup meanwhile, for want of memory.
    """

    pid: int
    started: str
    exit_code: int | None = None
    stopped: bool = False
    out_of_memory: bool = False

    @property
    def is_over(self) -> bool:
        """True if the run has ended, or its process no longer exists."""
        return self.exit_code is not None or start_time(self.pid) != self.started

    @property
    def end(self) -> str:
        """State of its end, one of `formats.process_end`."""
        code = self.exit_code
        if code is None:
            return UNKNOWN if self.is_over else RUNNING
        if code == 0:
            return COMPLETED
        if self.stopped or code - 128 in STOP_SIGNALS:
            return STOPPED
        if self.out_of_memory:
            return OUT_OF_MEMORY
        return KILLED if code == 128 + signal.SIGKILL else CRASHED

    @property
    def outcome(self) -> str:
        """Description of the end of the run."""
        if self.exit_code is None:
            return "ended without an exit code"
        if self.exit_code == 0:
            return COMPLETED
        by = signal_name(self.exit_code)
        return f"was ended by {by}" if by else f"ended with exit code {self.exit_code}"


def write_state(
    root: Path, exit_code: int | None = None, *, stopped: bool = False, out_of_memory: bool = False
) -> None:
    """Write the state of this process's run."""
    state = RunState(os.getpid(), start_time(os.getpid()), exit_code, stopped, out_of_memory)
    with contextlib.suppress(SourceError):  # a follower then waits for the end marker
        LocalStorage(root).write(STATE_FILE, json.dumps(attrs.asdict(state)).encode())


def remove_state(root: Path) -> None:
    """Remove the state of a run that recorded nothing, with its folder if that is empty."""
    with contextlib.suppress(OSError):
        (root / STATE_FILE).unlink(missing_ok=True)
        release(root)
        (root / STATE_FILE).parent.rmdir()


def read_state(root: Path) -> RunState | None:
    """Return the state of the last run in a folder; None if there was none, or it cannot be read."""
    try:
        found = json.loads(LocalStorage(root).read(STATE_FILE, end=_MAX_BYTES))
        pid, started, code = found["pid"], found["started"], found["exit_code"]
    except (SourceError, ValueError, TypeError, KeyError, RecursionError):
        return None
    valid = type(pid) is int and 0 < pid < 1 << 31 and isinstance(started, str) and (code is None or type(code) is int)
    if not valid:
        return None
    return RunState(pid, started, code, found.get("stopped") is True, found.get("out_of_memory") is True)
