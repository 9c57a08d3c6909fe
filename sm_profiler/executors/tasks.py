"""Many calls of one function with the workers of a pool: bytes in, bytes out, in the order of arrival."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from importlib import import_module
from types import TracebackType

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.executors.pools import Pool, send
from sm_profiler.printable import one_line
from sm_profiler.processes import receive_message

_OURS = "sm_profiler."


def main() -> None:
    """Run tasks until the owner closes the pipe."""
    with os.fdopen(int(sys.argv[1]), "rb") as requests, os.fdopen(int(sys.argv[2]), "wb") as answers:
        while True:
            try:
                name, data = receive_message(requests).decode(), receive_message(requests)
            except EOFError:
                return
            try:
                module, _, function = name.partition(":")
                if not module.startswith(_OURS):
                    raise ValueError(f"{module} is no module of sm-profiler")  # answered like all others
                answer = getattr(import_module(module), function)(data)
            except Exception as error:  # the owner raises it
                send(answers, b"1", f"{type(error).__name__}: {error}".encode())
            else:
                send(answers, b"", answer)


if __name__ == "__main__":
    main()


AHEAD = 4  # tasks of a worker that are submitted at once: the next wait here, not in a scheduler's memory
REDRAWN_S = 1.0
_LONGEST = 300  # characters of an error


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
    function: Callable[[bytes], bytes],
    tasks: Iterable[bytes],
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
            done, _ = wait(first, timeout=REDRAWN_S, return_when=FIRST_COMPLETED)
            for future in done:
                yield _result(running.pop(future), future)
            if not done:
                waiting()
    finally:
        for future in running:
            future.cancel()


def _submitted(pool: Pool, function: Callable[[bytes], bytes], task: bytes) -> Future[bytes]:
    try:
        return pool.executor.submit(function, task)
    except Exception as error:  # every executor has errors of its own
        raise SourceError(f"the workers cannot be reached: {_described(error)}") from None


def _result(number: int, future: Future[bytes]) -> TaskResult:
    try:
        return TaskResult(number, future.result())
    except CancelledError:
        raise SourceError("the workers cannot be reached: the connection to the scheduler is lost") from None
    except Exception as error:  # of the function, or of an executor, which has errors of its own
        return TaskResult(number, error=_described(error))


def _described(error: Exception) -> str:
    text = one_line(error)
    name = type(error).__name__
    return (text if text.startswith(name) or type(error) is RuntimeError else f"{name}: {text}")[:_LONGEST]


class Meter:
    """A line on the terminal: how much is done, by how many workers, and how long the rest will take."""

    def __init__(self, total: int, workers: int, *, noun: str = "files", show: bool | None = None) -> None:
        """Draw nothing yet.

        Args:
            total: the number of things to do.
            workers: the number of workers.
            noun: what the things are.
            show: draw; None: if standard error is a terminal.
        """
        self._total, self._workers, self._noun = total, workers, noun
        self._show = sys.stderr.isatty() if show is None else show
        self._started = time.monotonic()
        self._done = self._rows = 0

    def __enter__(self) -> Meter:  # typing.Self comes with Python 3.11
        self.draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._show:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def add(self, count: int, rows: int = 0) -> None:
        """Count things that are done, and the rows they held."""
        self._done, self._rows = self._done + count, self._rows + rows
        self.draw()

    def draw(self) -> None:
        """Draw the line again, as time has passed."""
        if not self._show:
            return
        passed = time.monotonic() - self._started
        rows = f", {self._rows:,} rows" if self._rows else ""
        left = ""
        if self._done:
            left = f", about {_duration(passed / self._done * (self._total - self._done))} left"
        sys.stderr.write(
            f"\r{self._done:,} of {self._total:,} {self._noun}{rows}, {self._workers} workers, {_duration(passed)}{left}\033[K"
        )
        sys.stderr.flush()


def _duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min"  # two minutes
