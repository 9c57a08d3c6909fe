"""The endpoint's side of a job's process: start it under a supervisor, read its lines, stop it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SUPERVISOR = Path(__file__).with_name("supervisor.py")
SIGNALLED = 128  # exit codes above it name a signal
GRACE_S = 15.0  # between SIGTERM and SIGKILL; the service gives 120 s
LONGEST_LINE = 65536  # bytes; a longer line is cut into pieces, as a log service does


class JobProcess:
    """A running command of a job.

    Args:
        command: program and arguments.
        environment: all of its environment; nothing is inherited.
        folder: its working directory.
        on_line: called with each line of its output (both streams), in a thread of its own.
        grace_s: seconds between SIGTERM and SIGKILL when it is stopped.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        on_line: Callable[[str], None],
        grace_s: float = GRACE_S,
    ) -> None:
        self._stopping = threading.Event()
        self._on_line = on_line
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR), str(grace_s), *command],
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the endpoint's terminal is the endpoint's to handle
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id of the supervisor, the ancestor of all the job's processes."""
        return self._supervisor.pid

    @property
    def running(self) -> bool:
        """Whether anything of it is still there."""
        return self._supervisor.poll() is None

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called on it."""
        return self._stopping.is_set()

    def _read(self) -> None:
        stream = self._supervisor.stdout
        if stream is None:  # it is a pipe, see above
            return
        with stream:
            while line := stream.readline(LONGEST_LINE):
                text = line.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2]  # of a progress bar, the last
                with contextlib.suppress(Exception):  # a log line that cannot be stored must not block the job's pipe
                    self._on_line(text)

    def stop(self) -> None:
        """Ask it to end; returns at once.  The supervisor kills what has not ended after the grace time."""
        self._stopping.set()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self._supervisor.stdin is not None:
            with contextlib.suppress(OSError):
                self._supervisor.stdin.close()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Exit code (128 + n for signal n), or None where it still runs after `timeout_s`."""
        try:
            code = self._supervisor.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(5)
        self._close_pipe()
        return code


def describe_exit(code: int) -> str:
    """Words for an exit code, as a FailureReason has them."""
    if code > SIGNALLED:
        with contextlib.suppress(ValueError):
            return f"exit code {code} ({signal.Signals(code - SIGNALLED).name})"
    return f"exit code {code}"
