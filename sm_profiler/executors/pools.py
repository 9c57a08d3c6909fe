"""Executors by name: processes of this machine (`local[:N]`) and Dask (`dask:local[:N]`, `dask:tcp://HOST:PORT`).

Their workers call a function with many typed tasks; the answers are yielded in the order of arrival.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property, update_wrapper
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar, get_type_hints

import attrs
import msgspec
import numpy as np

from sm_profiler._version import __version__
from sm_profiler.errors import ConfigError, ProfilerError, SourceError
from sm_profiler.formats.bounds import COUNTED_BYTES, FREE_ELEMENTS, check_elements
from sm_profiler.printable import one_line
from sm_profiler.processes import Helper, processors, receive_message, send_message, start_module, wait_for

ATTEMPTS = 3  # processes that a task is given to, one after another, if they are killed
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which Python 3.10 does not define
_PIPE_BYTES = 1 << 20

MAX_WORKERS = 4096
CONNECT_S = 10.0
START_S = 60.0
STOP_S = 5.0
_NAME = re.compile(r"(?P<kind>local|dask:local)(?::(?P<count>[0-9]{1,6}))?|dask:(?P<address>(?:tcp|tls|ucx)://\S+)")

TaskT = TypeVar("TaskT")
AnswerT = TypeVar("AnswerT")
# The types of arrays; the number of each is that of its MessagePack extension.
_KINDS = tuple(map(np.dtype, ("<f8", "<i8", "<i4", "<i2", "|i1", "|u1", "|b1")))
_FAILED, _ANSWERED = b"\1", b"\0"
AHEAD = 4  # tasks of a worker that are submitted at once: the next wait here, not in a scheduler's memory
WAITED_S = 1.0  # for a result, between two calls of `waiting`
PATIENCE_S, REDRAWN_S = 1.0, 0.1  # before a line of progress is drawn, and between two times
_LONGEST = 300  # characters of an error


class LocalExecutor(Executor):
    """Runs functions of this package that take and return bytes, each in one of several processes.

    Unlike those of `ProcessPoolExecutor`, the processes unpickle nothing and do not import the caller's script again, and
    one that is killed takes no other task with it: its task runs again in another.
    """

    def __init__(self, workers: int, *, restarts: bool = True) -> None:
        """Start no process yet: each starts with its first task.

        Args:
            restarts: replace a process that is killed; otherwise, its task fails at once.
        """
        self.workers = workers
        self._restarts = restarts
        self._threads = ThreadPoolExecutor(workers, "sm-profiler-task")
        self._free: list[tuple[str, Helper]] = []
        self._all: list[Helper] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function of this package in a process; `args` is one bytes object, and so is the result."""
        (data,) = args
        del kwargs
        return self._threads.submit(self._run, f"{fn.__module__}:{fn.__qualname__}", data)

    def _run(self, name: str, data: bytes) -> bytes:
        attempts = ATTEMPTS if self._restarts else 1
        for _ in range(attempts):
            helper = self._take(name)
            try:
                send_message(helper.requests, data)
                helper.requests.flush()
                failed, answer = receive_message(helper.answers), receive_message(helper.answers)
            except (OSError, EOFError, ValueError):  # killed, for its memory for example
                helper.process.kill()
                continue
            self._free.append((name, helper))
            if failed:
                raise RuntimeError(answer.decode())
            return answer
        raise BrokenExecutor(f"{attempts} processes in a row were killed at the same part of the job")

    def _take(self, name: str) -> Helper:
        """Return a process that calls a function, which it was started for: nothing in a task names code."""
        with self._lock:
            for each in self._free:
                if each[0] == name and each[1].process.poll() is None:
                    self._free.remove(each)
                    return each[1]
            if self._closed:
                raise BrokenExecutor("the executor is closed")
            if len(self._all) >= self.workers and not self._restarts:
                raise BrokenExecutor("a process was killed")
            helper = Helper("sm_profiler.executors.worker", [name])
            with suppress(OSError):
                fcntl.fcntl(helper.answers, _SET_PIPE_SIZE, _PIPE_BYTES)
            self._all.append(helper)
        return helper

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # the signature of Executor
        """End the processes; tasks that run are not waited for unless `wait` is set."""
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)
        with self._lock:
            self._closed = True
            for helper in self._all:
                with suppress(OSError):
                    helper.close()


@attrs.frozen
class Pool:
    executor: Executor
    workers: int


@contextmanager
def open_pool(name: str | Executor | Pool) -> Iterator[Pool]:
    """Open an executor, and close it at the end if it was opened here.

    Args:
        name: `local` (one process for each processor), `local:N`, `dask:local[:N]` (a new Dask cluster),
            `dask:tcp://HOST:PORT` (a scheduler that runs), any executor whose workers have sm-profiler installed, or a pool
            that is open.

    Raises:
        ConfigError: there is no such executor.
        SourceError: the scheduler cannot be reached, has no workers, or its workers have another version.
    """
    if isinstance(name, Pool):
        yield name
        return
    if isinstance(name, Executor):
        yield Pool(name, int(getattr(name, "_max_workers", 0)) or processors())
        return
    found = _NAME.fullmatch(name.strip())
    count = int(found["count"]) if found and found["count"] else processors()
    if not found or not 1 <= count <= MAX_WORKERS:
        raise ConfigError(
            f"--executor {name}: expected local, local:N, dask:local, dask:local:N or dask:tcp://HOST:PORT"
        )
    if found["kind"] == "local":
        executor = LocalExecutor(count)
        try:
            yield Pool(executor, count)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
        return
    with _dask(found["address"], count) as pool:
        yield pool


@contextmanager
def _dask(address: str | None, count: int) -> Iterator[Pool]:
    wanted = 1 if address else count
    with ExitStack() as stack:
        client = connect(address or stack.enter_context(_cluster(count)), CONNECT_S)
        stack.callback(client.close)
        _wait_for_workers(client, wanted)
        check_versions(client)
        yield pool_of(client)


def connect(address: str, timeout_s: float) -> Any:
    """Return a client of a Dask scheduler.

    Raises:
        SourceError: Dask is not installed, or the scheduler cannot be reached.
    """
    dask = _distributed()
    try:
        return dask.Client(address, timeout=timeout_s, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise SourceError(f"the Dask scheduler {address} cannot be reached: {one_line(error)}") from None


def pool_of(client: Any) -> Pool:
    """Return the workers of a Dask cluster."""
    return Pool(client.get_executor(pure=False, retries=2), max(sum(client.nthreads().values()), 1))


def _distributed() -> Any:
    try:
        import distributed  # an extra
    except ImportError:
        raise SourceError("--executor dask needs Dask: pip install 'sm-profiler[dask]'") from None
    return distributed


@contextmanager
def _cluster(count: int) -> Iterator[str]:
    """Run a scheduler and workers on this machine; Dask's own cluster would import the caller's script again."""
    _distributed()
    with tempfile.TemporaryDirectory(prefix="sm-profiler-dask-") as folder, ExitStack() as stack:
        file = Path(folder, "scheduler.json")
        common = ["--scheduler-file", str(file), "--no-dashboard"]
        for module, arguments in (
            ("distributed.cli.dask_scheduler", [*common, "--host", "127.0.0.1", "--port", "0"]),
            (
                "distributed.cli.dask_worker",
                [*common, "--nworkers", str(count), "--nthreads", "1", "--local-directory", folder],
            ),
        ):
            process = start_module(module, arguments, stderr=subprocess.DEVNULL, new_session=True)
            stack.callback(end_process, process)
        until = time.monotonic() + START_S
        while not file.exists():
            if time.monotonic() > until:
                raise SourceError("a Dask scheduler cannot be started on this machine")
            time.sleep(0.05)
        yield str(json.loads(file.read_text())["address"])


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End a process and those it has started."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGTERM)
    if not wait_for(process, STOP_S):
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for_workers(client: Any, count: int) -> None:
    """Wait until a cluster has workers.

    Raises:
        SourceError: it has none in time.
    """
    try:
        client.wait_for_workers(count, timeout=START_S if count > 1 else CONNECT_S)
    except TimeoutError:
        if not client.nthreads():
            raise SourceError("the Dask scheduler has no workers") from None


def check_versions(client: Any) -> None:
    """Raise an error unless all workers of a cluster have this version of sm-profiler."""
    try:
        found = client.run(worker_version)
    except Exception as error:  # any error of a worker without the package
        raise SourceError(f"a Dask worker has no sm-profiler: {' '.join(str(error).split())[:200]}") from None
    if not found:
        raise SourceError("the Dask scheduler has no workers")
    other = {version for version in found.values() if version != __version__}
    if other:
        raise SourceError(
            f"sm-profiler is {__version__} here and {', '.join(sorted(map(str, other)))} on the Dask workers: install the same version"
        )


def worker_version() -> str:
    """Return the version of sm-profiler where this runs."""
    return __version__


class Remote(Generic[TaskT, AnswerT]):
    """A function that workers call: a function of one task and its answer, called with bytes and returning bytes.

    The types of both are those of the function's annotations: MessagePack of msgspec structs, attrs classes and flat numpy
    arrays. Nothing else is accepted, and an executor transports no objects. Errors of sm-profiler, and that of a worker of
    another version, reach the caller as such.
    """

    def __init__(self, function: Callable[[TaskT], AnswerT], version: Callable[[], str] = worker_version) -> None:
        """Wrap a function.

        Args:
            version: returns what has to be the same where the command runs and on a worker.
        """
        update_wrapper(self, function)
        self.function, self._version = function, version

    @cached_property
    def _decoders(self) -> tuple[Any, Any]:
        hints = get_type_hints(self.function)
        kinds = (next(kind for name, kind in hints.items() if name != "return"), hints["return"])
        first, second = (msgspec.msgpack.Decoder(kind, dec_hook=_as_it_is, ext_hook=_array) for kind in kinds)
        return first, second

    def __call__(self, data: bytes) -> bytes | bytearray:
        try:
            end = data.find(0)
            theirs = bytes(data[:end]).decode(errors="replace")
            if theirs != (here := self._version()):
                raise SourceError(
                    f"sm-profiler is {theirs} where the command runs and {here} on a worker: install the same version"
                )
            return _encoded(_ANSWERED, self.function(self._decoders[0].decode(memoryview(data)[end + 1 :])))
        except ProfilerError as error:
            return _FAILED + str(error).encode(errors="backslashreplace")

    def __reduce__(self) -> str:
        """Have executors that pickle functions pickle its name."""
        return str(self.function.__qualname__)

    def encode(self, task: TaskT) -> bytearray:
        """Return a task as the bytes that a worker takes.

        Raises:
            UnicodeEncodeError: it holds a text that is none, such as the name of a local file.
        """
        return _encoded(self._version().encode() + b"\0", task)

    def decode(self, data: bytes | bytearray) -> AnswerT:
        """Return a worker's answer.

        Raises:
            SourceError: that of the function, or the bytes are no answer.
        """
        if data[:1] == _FAILED:
            raise SourceError(bytes(data[1:]).decode(errors="replace"))
        body = memoryview(data)[1:]
        try:
            if len(body) > COUNTED_BYTES:
                check_elements(body, FREE_ELEMENTS + len(body))
            answer: AnswerT = self._decoders[1].decode(body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise SourceError(f"a worker's answer is damaged: {error}") from None
        return answer


def _encoded(head: bytes, value: Any) -> bytearray:
    found = bytearray(head)
    _ENCODER.encode_into(value, found, -1)
    return found


def _extension(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype not in _KINDS:
        raise TypeError(f"a task or answer with {type(value)}")
    return msgspec.msgpack.Ext(_KINDS.index(value.dtype), np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_extension)


def _array(kind: int, data: memoryview) -> Any:
    if not 0 <= kind < len(_KINDS):
        raise ValueError(f"extension {kind}")
    return np.frombuffer(data, _KINDS[kind]).copy()  # aligned, and without the message around it


def _as_it_is(kind: Any, value: Any) -> Any:
    del kind  # an array: msgspec has no other type that it cannot make itself
    return value


@attrs.frozen
class TaskResult:
    """Outcome of one task.

    Attributes:
        number: its place among the tasks.
        data: what the function returned; b"" if it failed.
        error: one line: the function's error, or that one worker after another was killed at it; "" if it succeeded.
    """

    number: int
    data: bytes = b""
    error: str = ""


def run_tasks(
    pool: Pool,
    function: Callable[[Any], Any],
    tasks: Iterable[bytes | bytearray],
    *,
    waiting: Callable[[], object] = bool,
    in_order: bool = False,
) -> Generator[TaskResult, None, None]:
    """Call a function of this package once for each task, and yield the results as they arrive.

    A task whose worker is killed runs again in another, up to three times, so a task may run twice: the function
    must do no harm then. Tasks that have not begun when the caller stops reading never do.

    Args:
        pool: the workers, from `open_pool`.
        function: a function of a module of sm_profiler, by whose name the workers find it.
        tasks: its arguments; an iterator is advanced as workers become free.
        waiting: called about once a second while nothing arrives.
        in_order: yield the results in the order of the tasks; those that arrive early wait, and hold up new tasks.

    Raises:
        SourceError: the workers cannot be reached any more.
    """
    todo = enumerate(tasks)
    running: dict[Future[bytes], int] = {}
    try:
        while True:
            while len(running) < AHEAD * pool.workers and (task := next(todo, None)) is not None:
                running[_submitted(pool, function, task[1])] = task[0]
            if not running:
                return
            first = [min(running, key=running.__getitem__)] if in_order else running
            done, _ = wait(first, timeout=WAITED_S, return_when=FIRST_COMPLETED)
            for future in done:
                yield _result(running.pop(future), future)
            if not done:
                waiting()
    finally:
        for future in running:
            future.cancel()


def map_tasks(
    pool: Pool,
    function: Remote[TaskT, AnswerT],
    tasks: Iterable[TaskT],
    *,
    waiting: Callable[[], object] = bool,
    in_order: bool = False,
) -> Generator[tuple[int, AnswerT], None, None]:
    """Yield the number and the answer of each task as they arrive; the arguments are those of `run_tasks`.

    Raises:
        SourceError: the function raised it, a task failed, or the workers cannot be reached any more.
    """
    found = run_tasks(pool, function, map(function.encode, tasks), waiting=waiting, in_order=in_order)
    with closing(found) as results:
        for result in results:
            if result.error:
                raise SourceError(f"the workers failed: {result.error}")
            yield result.number, function.decode(result.data)


def _submitted(pool: Pool, function: Callable[[Any], Any], task: bytes | bytearray) -> Future[bytes]:
    try:
        return pool.executor.submit(function, task)
    except Exception as error:  # each executor has other errors
        raise SourceError(f"the workers cannot be reached: {_described(error)}") from None


def _result(number: int, future: Future[bytes]) -> TaskResult:
    try:
        return TaskResult(number, future.result())
    except CancelledError:
        raise SourceError("the workers cannot be reached: the connection to the scheduler is lost") from None
    except Exception as error:  # of the function, or of an executor, each of which has other errors
        return TaskResult(number, error=_described(error))


def _described(error: Exception) -> str:
    text = one_line(error)
    name = type(error).__name__
    return (text if text.startswith(name) or type(error) is RuntimeError else f"{name}: {text}")[:_LONGEST]


class Meter:
    """A line on the terminal: how much is done, by how many workers, and how long the rest will take.

    It is drawn if standard error is a terminal, after a second; with `show`, in any case and at once.
    """

    def __init__(self, total: float, workers: int = 1, *, noun: str = "files", show: bool | None = None) -> None:
        self._total, self._workers, self._noun = total, workers, noun
        self._show = sys.stderr.isatty() if show is None else show
        self._started = time.monotonic()
        self._due = self._started + (PATIENCE_S if show is None else 0.0)
        self._done, self._rows, self._is_drawn = 0.0, 0, False

    def __enter__(self) -> Meter:  # typing.Self comes with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_drawn:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def add(self, count: float, rows: int = 0) -> None:
        """Count things that are done, and the rows they held."""
        self._done, self._rows = self._done + count, self._rows + rows
        self.draw()

    def draw(self) -> None:
        """Draw the line again, as time has passed."""
        now = time.monotonic()
        if not self._show or now < self._due:
            return
        self._due, self._is_drawn, passed = now + REDRAWN_S, True, now - self._started
        rows = f", {self._rows:,} rows" if self._rows else ""
        workers = f", {self._workers} workers" if self._workers > 1 else ""
        left = f", about {_duration(passed / self._done * (self._total - self._done))} left" if self._done else ""
        sys.stderr.write(
            f"\r{self._done:,.0f} of {self._total:,.0f} {self._noun}{rows}{workers}, {_duration(passed)}{left}\033[K"
        )
        sys.stderr.flush()


def _duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min"  # two minutes
