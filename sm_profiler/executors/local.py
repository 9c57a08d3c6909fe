"""Processes of our own as an executor: no pickle, no fork, and nothing of the caller's script is imported again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import IO, Any

from sm_profiler.processes import Helper, receive_message, send_message

ATTEMPTS = 3  # processes that a task is given to, one after another, if they are killed


def send(stream: IO[bytes], *messages: bytes) -> None:
    """Write messages and flush."""
    for message in messages:
        send_message(stream, message)
    stream.flush()


class LocalExecutor(Executor):
    """Runs functions of this package that take and return bytes, each in one of several processes.

    A task whose process is killed runs again in another one.
    """

    def __init__(self, workers: int) -> None:
        """Start no process yet: each starts with its first task."""
        self.workers = workers
        self._threads = ThreadPoolExecutor(workers, "sm-profiler-task")
        self._free: SimpleQueue[Helper] = SimpleQueue()
        self._all: list[Helper] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function of this package in a process; `args` is one bytes object, and so is the result."""
        (data,) = args
        del kwargs
        return self._threads.submit(self._run, f"{fn.__module__}:{fn.__qualname__}", data)

    def _run(self, name: str, data: bytes) -> bytes:
        for _ in range(ATTEMPTS):
            helper = self._take()
            try:
                send(helper.requests, name.encode(), data)
                failed, answer = receive_message(helper.answers), receive_message(helper.answers)
            except (OSError, EOFError, ValueError):  # killed, for its memory for example
                helper.process.kill()
                continue
            self._free.put(helper)
            if failed:
                raise RuntimeError(answer.decode())
            return answer
        raise BrokenExecutor(f"{ATTEMPTS} processes in a row were killed at the same part of the job")

    def _take(self) -> Helper:
        while not self._free.empty():
            helper = self._free.get()
            if helper.process.poll() is None:
                return helper
        with self._lock:
            if self._closed:
                raise BrokenExecutor("the executor is closed")
            helper = Helper("sm_profiler.executors.worker")
            self._all.append(helper)
        return helper

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - the signature of Executor
        """End the processes; tasks that run are not waited for unless `wait` is set."""
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)
        with self._lock:
            self._closed = True
            for helper in self._all:
                with suppress(OSError):
                    helper.close()
