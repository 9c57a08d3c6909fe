"""Start a job's process under a supervisor, read its output, stop it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SUPERVISOR = Path(__file__).with_name("supervisor.py")
SIGNALLED = 128  # exit code minus this is the number of the signal that ended the process
GRACE_S = 15.0  # between SIGTERM and SIGKILL; the service gives 120 s
MAX_LINE = 65536  # bytes; longer lines are split, as a log service does


class JobProcess:
    """A running command of a job.

    Args:
        command: program and arguments.
        environment: all its variables; none are inherited.
        folder: its working directory.
        on_line: called in another thread with each line of its output and errors.
        grace_s: seconds between SIGTERM and SIGKILL when stopped.
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
            start_new_session=True,  # the endpoint handles Ctrl-C in its terminal
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def running(self) -> bool:
        """True while any process of the command exists."""
        return self._supervisor.poll() is None

    @property
    def stopped(self) -> bool:
        """True once `stop` has been called."""
        return self._stopping.is_set()

    def _read(self) -> None:
        stream = self._supervisor.stdout
        if stream is None:  # for the type checker: it is a pipe
            return
        with stream:
            while line := stream.readline(MAX_LINE):
                text = (
                    line.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2]
                )  # last state of a progress bar
                with contextlib.suppress(Exception):  # a line that cannot be logged must not block the job
                    self._on_line(text)

    def stop(self) -> None:
        """Request the end and return at once; the supervisor kills what is left after the grace time."""
        self._stopping.set()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self._supervisor.stdin is not None:
            with contextlib.suppress(OSError):
                self._supervisor.stdin.close()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return the exit code (128 + n for signal n), or None if still running after `timeout_s`."""
        try:
            code = self._supervisor.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(5)
        self._close_pipe()
        return code


def describe_exit(code: int) -> str:
    """Describe an exit code for a FailureReason."""
    if code > SIGNALLED:
        with contextlib.suppress(ValueError):
            return f"exit code {code} ({signal.Signals(code - SIGNALLED).name})"
    return f"exit code {code}"
