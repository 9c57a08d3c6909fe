"""Run one command and leave no process of it behind, even if the endpoint is killed.

This script is started by path and uses the standard library only.  It runs between the endpoint and a job's process: its
standard input is a pipe from the endpoint, whose end, also by kill -9, closes that pipe.  On Linux it adopts orphans of
the command (workers whose parent died, daemons that left the process group) and kills them too.

    python supervisor.py GRACE_SECONDS COMMAND…

The exit code is the command's, or 128 + n if signal n ended it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SIGNALLED = 128  # exit code minus this is the number of the signal that ended the process
GRACE_S = 15.0  # between SIGTERM and SIGKILL; the service gives 120 s
MAX_LINE = 65536  # bytes; longer lines are split, as a log service does
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LINUX = sys.platform.startswith("linux")
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
POLL_S = 0.02
KILL_ROUNDS = 500  # of POLL_S each; limits the wait for a process in uninterruptible sleep


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
            [sys.executable, "-I", "-S", __file__, str(grace_s), *command],
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
    if code > SIGNALLED:
        with contextlib.suppress(ValueError):
            return f"exit code {code} ({signal.Signals(code - SIGNALLED).name})"
    return f"exit code {code}"


# In the supervisor.


def prctl(option: int, value: int) -> None:
    """Call prctl on Linux; do nothing elsewhere."""
    if LINUX:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants() -> set[int]:
    """Return the process ids of all descendants, adopted orphans included; empty without /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat") if LINUX else ():
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = entry.read_text("utf-8", "replace")
            parents[int(entry.parent.name)] = int(text.rpartition(")")[2].split()[1])
    descendants, border = set[int](), {os.getpid()}
    while border:
        border = {pid for pid, parent in parents.items() if parent in border} - descendants
        descendants |= border
    return descendants


def reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def kill_rest(group: int) -> None:
    """Kill the command's process group and all descendants; return when none is left."""
    for _ in range(KILL_ROUNDS):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        rest = descendants()
        for pid in rest:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap()
        if not rest:
            return
        time.sleep(POLL_S)


def terminate(group: int) -> None:
    """Send SIGTERM to the command's process group, and once to each descendant that has left it."""
    others = []
    for pid in descendants():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != group:
                others.append(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
    for pid in others:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)


def die_with(supervisor: int) -> None:
    """End this process with the supervisor, even if that has already ended; runs between fork and exec."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


class Supervisor:
    """One command and its descendants."""

    def __init__(self, grace_s: float, command: list[str]) -> None:
        self.grace_s = grace_s
        self.deadline: float | None = (
            None  # by the monotonic clock; until then, a stopped command's descendants may work
        )
        # a signal that ended the supervisor now would orphan the command; `run` unblocks signals
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        supervisor = os.getpid()
        self.child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # safe: this process still has only one thread
            preexec_fn=lambda: die_with(supervisor),  # noqa: PLW1509
        )

    def stop(self) -> None:
        """Send SIGTERM, wait for the grace time, then send SIGKILL."""
        self.deadline = time.monotonic() + self.grace_s
        terminate(self.child.pid)
        try:
            self.child.wait(self.grace_s)
        except subprocess.TimeoutExpired:  # otherwise `run` kills what is left of its group, once that had its time
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child.pid, signal.SIGKILL)

    def watch(self, terminated: int) -> None:
        """Stop when standard input ends (the endpoint requests it, or has ended), or after SIGTERM."""
        select.select([0, terminated], [], [])
        self.stop()

    def let_descendants_end(self) -> None:
        """Wait for the descendants of a stopped command: a container outlives its script, and the monitor still uploads."""
        while self.deadline is not None and time.monotonic() < self.deadline:
            reap()
            if not descendants():
                return
            time.sleep(POLL_S)

    def run(self) -> int:
        """Wait for the command; return its exit code when no process of it is left."""
        terminated, wake = os.pipe()
        os.set_blocking(wake, False)
        # The handler only writes to a pipe: starting a thread takes locks that the main thread may hold.
        signal.signal(signal.SIGTERM, lambda *_: _wake(wake))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        threading.Thread(target=self.watch, args=(terminated,), daemon=True).start()
        code = self.child.wait()
        self.let_descendants_end()
        kill_rest(self.child.pid)
        return code if code >= 0 else 128 - code


def _wake(pipe: int) -> None:
    with contextlib.suppress(BlockingIOError):  # a full pipe wakes too
        os.write(pipe, b"\0")


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code; 127 if it cannot be started."""
    # No PR_SET_PDEATHSIG here: it follows the thread that started this process, which may be one request's.
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        supervisor = Supervisor(float(arguments[0]), arguments[1:])
    except OSError as error:
        sys.stdout.write(f"cannot start {arguments[1]}: {error.strerror}\n")
        return 127
    return supervisor.run()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # a thread may still be blocked in read(0)
