"""Executors by name: processes of this machine (`local[:N]`) and Dask (`dask:local[:N]`, `dask:tcp://HOST:PORT`)."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from sm_profiler._version import __version__
from sm_profiler.errors import ConfigError, SourceError
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
