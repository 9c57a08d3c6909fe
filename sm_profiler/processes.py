"""Python processes of our own: parsers of files, conversions, the monitor and custom rules."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import IO

from sm_profiler.descriptors import moved_up
from sm_profiler.limits import Limits
from sm_profiler.settings import AUTO

# Such a process is neither a training to be profiled nor an interactive session.
_HIDDEN = frozenset({AUTO.name, "PYTHONINSPECT", "PYTHONSTARTUP"})
STOPPED_SECONDS = 3.0  # how long a stopped process is waited for
POLL_SECONDS = 0.5
_LENGTH = 8  # bytes of a message's length
_MMAP_THRESHOLD = -3  # glibc's number of this option
_LARGE_BYTES = 1 << 20
_PACKAGE = str(Path(__file__).resolve().parents[1])


def start_module(  # the options of Popen that our processes differ in
    module: str,
    arguments: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    cwd: str | Path = "/",
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    stderr: int | None = None,
    pass_fds: Collection[int] = (),
    new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start `python -m module` so that it imports this very package.

    Args:
        module: full name of the module.
        arguments: its command line.
        environment: variables to start from; default: this process's.
        cwd: its working directory, from which Python imports too: by default none in which a user keeps files.
        stdin: as for `subprocess.Popen`, like the next two.
        stdout: see there.
        stderr: see there.
        pass_fds: file descriptors that stay open in it.
        new_session: keep the terminal's signals (Ctrl-C) from it.

    Raises:
        OSError: no process can be started.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=_variables(environment),
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=tuple(pass_fds),
        start_new_session=new_session,
    )


def _variables(environment: Mapping[str, str] | None) -> dict[str, str]:
    variables = dict(os.environ if environment is None else environment)
    for name in _HIDDEN:
        variables.pop(name, None)
    search = []
    for part in filter(None, variables.get("PYTHONPATH", "").split(os.pathsep)):
        with suppress(FileNotFoundError):  # a relative one, if the working folder was removed
            search.append(str(Path(part).absolute()))
    variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*search, _PACKAGE]))
    return variables


SHELL = "/bin/sh"
_POLL_MS = 10_000
_LOOK_SECONDS = 0.2  # between two looks at a process that the kernel does not announce


class Detached:
    """A process that is no child of this one, so that a script that waits for any child does not meet it.

    It has the methods of `subprocess.Popen` that such a process can have; its exit code is unknown, and given as 0.

    Attributes:
        pid: the process.
        stdin: the pipe to it, if there is one.
    """

    def __init__(self, pid: int, stdin: IO[bytes] | None = None) -> None:
        self.pid, self.stdin = pid, stdin
        self._started = start_time(pid)

    def poll(self) -> int | None:
        """Return None while it runs, and 0 afterwards."""
        return None if self._started and start_time(self.pid) == self._started else 0

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        until, announced = time.monotonic() + (math.inf if timeout is None else timeout), self._announced()
        try:
            while self.poll() is None:
                left = until - time.monotonic()
                if left <= 0:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
                if announced < 0:
                    time.sleep(min(left, _LOOK_SECONDS))
                    continue
                poll = select.poll()
                poll.register(announced, select.POLLIN)
                if poll.poll(min(left * 1000, _POLL_MS)) and self.poll() is None:
                    announced = -1  # the script has closed it
        finally:
            if announced >= 0:
                os.close(announced)
        return 0

    def _announced(self) -> int:
        """Return a file that can be read once it has ended; -1 if the system has none."""
        try:
            return moved_up(os.pidfd_open(self.pid))
        except (OSError, AttributeError):  # an old kernel, or macOS
            return -1

    def send_signal(self, number: int) -> None:
        """Send it a signal if it runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def start_detached(
    module: str,
    arguments: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    cwd: str | Path = "/",
    stdin: int = subprocess.DEVNULL,
    stderr: int | None = None,
    pass_fds: Collection[int] = (),
) -> Detached | subprocess.Popen[bytes]:
    """Start `python -m module` as `start_module` does, but not as a child; as a child if there is no shell.

    A shell starts it and ends: it takes a millisecond, where another Python would take tens of them.

    Args:
        module: full name of the module.
        arguments: its command line.
        environment: variables to start from; default: this process's.
        cwd: its working directory.
        stdin: as for `subprocess.Popen`, like the next two.
        stderr: see there.
        pass_fds: file descriptors that stay open in it.

    Raises:
        OSError: no process can be started.
    """
    if not os.access(SHELL, os.X_OK):
        return start_module(
            module, arguments, environment=environment, cwd=cwd, stdin=stdin, stderr=stderr, pass_fds=pass_fds
        )
    # what a shell starts in the background reads from /dev/null, unless it is given another file
    spare = next(number for number in range(3, 10) if number not in pass_fds)
    script = f'exec {spare}<&0; "$@" <&{spare} {spare}<&- >/dev/null & echo $!'
    shell = subprocess.Popen(
        [SHELL, "-c", script, "sh", sys.executable, "-m", module, *arguments],
        env=_variables(environment),
        cwd=cwd,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        pass_fds=tuple(pass_fds),
    )
    with shell.stdout or nullcontext():
        pid = shell.stdout.readline() if shell.stdout else b""
    shell.wait()
    if not pid.strip().isdigit():
        raise OSError(f"{SHELL} cannot start {sys.executable}")
    return Detached(int(pid), shell.stdin)


def run_as_main() -> None:
    """Run `-m MODULE ARGS` or `SCRIPT ARGS`, the words of this process's command line, as `__main__`."""
    import runpy  # which our other processes do not need

    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


def processors() -> int:
    """Return the number of processors that this process may use: by its affinity, and by the container's CPU quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not on macOS
    quota = Limits().cpu_quota
    return min(count, max(round(quota), 1)) if quota else count


def send_message(stream: IO[bytes], message: bytes) -> None:
    """Write a message behind its length, without flushing."""
    stream.write(len(message).to_bytes(_LENGTH, "little"))
    stream.write(message)


def receive_message(stream: IO[bytes]) -> bytes:
    """Read a message that `send_message` wrote.

    Raises:
        EOFError: the other end is closed.
    """
    return read_exactly(stream, int.from_bytes(read_exactly(stream, _LENGTH), "little"))


def read_exactly(stream: IO[bytes], size: int) -> bytes:
    """Read some bytes.

    Raises:
        EOFError: the other end is closed before.
    """
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def wait_for_starter() -> None:
    """Wait until the process that started this one closes its end of standard input, at the latest by its own end."""
    with suppress(OSError):
        while os.read(0, 1024):
            pass


PROC = Path("/proc")


def start_time(pid: int, proc: Path = PROC) -> str:
    """Return when a process started, in the kernel's ticks since boot; "" if it is not running.

    If there is no /proc, a process that is running has "0".
    """
    try:
        fields = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return "" if (proc / "self").exists() or not _accepts_signals(pid) else "0"
    return "" if fields[0] in {b"Z", b"X"} else fields[19].decode()


def _accepts_signals(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


class StopWatch:
    """Notices that a process has been stopped (by SIGSTOP, a debugger) for longer than it is worth waiting for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None

    def is_over(self, pid: int) -> bool:
        """Return whether the process has been found stopped in all calls of the last seconds."""
        if not is_stopped(pid):
            self._since = None
            return False
        self._since = self._clock() if self._since is None else self._since
        return self._clock() - self._since >= STOPPED_SECONDS


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or a debugger; False where the system cannot answer."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in {b"T", b"t"}
    except (OSError, IndexError):
        return False


def wait_for(process: subprocess.Popen[bytes] | Detached, seconds: float) -> bool:
    """Return whether a process ends within some seconds; one that is stopped is not waited for."""
    watch, until = StopWatch(), time.monotonic() + seconds
    while time.monotonic() < until and not watch.is_over(process.pid):
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(POLL_SECONDS, max(until - time.monotonic(), 0.0)))
            return True
    return False


class Helper:
    """A process that answers requests over two pipes of its own.

    Its standard streams carry no protocol: output printed in it, even at the start of the interpreter, does no harm.

    Attributes:
        process: the process.
        requests: where this process writes.
        answers: where this process reads.
    """

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        """Start `python -m module REQUESTS ANSWERS *arguments`; the two are numbers of file descriptors.

        Raises:
            OSError: no process can be started.
        """
        requests_end, requests = os.pipe()
        answers, answers_end = os.pipe()
        self.requests: IO[bytes] = os.fdopen(requests, "wb")
        self.answers: IO[bytes] = os.fdopen(answers, "rb")
        ends = (requests_end, answers_end)
        try:
            self.process = start_module(
                module, [*map(str, ends), *arguments], stderr=subprocess.DEVNULL, pass_fds=ends, new_session=True
            )
        except BaseException:
            self.requests.close()
            self.answers.close()
            raise
        finally:
            os.close(requests_end)
            os.close(answers_end)

    def close(self) -> None:
        """Kill the process and close the pipes."""
        self.process.kill()
        with suppress(OSError):  # bytes not flushed yet have lost their reader
            self.requests.close()
        self.answers.close()
        self.process.wait()


def trim_heap() -> None:
    """Return freed memory to the system: glibc keeps it in pieces between the arrays that are still used.

    From the first call on, large arrays are apart from its heap, and are returned when they are freed.
    """
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    import ctypes  # only readers of long jobs need it

    with suppress(OSError, AttributeError, TypeError):  # another C library than glibc
        library = ctypes.CDLL(None)
        function: Callable[[int], int] = library.malloc_trim
        # By itself, it raises this limit to the largest array that is freed: the next ones leave gaps in its heap.
        library.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        return function
    return None
