"""Many calls of one function by the workers of a pool, in the order of arrival."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import closing
from functools import cached_property, update_wrapper
from types import TracebackType
from typing import Any, Generic, TypeVar, get_type_hints

import attrs
import msgspec
import numpy as np

from sm_profiler._version import __version__
from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.executors.pools import Pool
from sm_profiler.formats.bounds import COUNTED_BYTES, FREE_ELEMENTS, check_elements
from sm_profiler.printable import one_line

TaskT = TypeVar("TaskT")
AnswerT = TypeVar("AnswerT")
# The types of arrays; the number of each is that of its MessagePack extension.
_KINDS = tuple(map(np.dtype, ("<f8", "<i8", "<i4", "<i2", "|i1", "|u1", "|b1")))
_FAILED, _ANSWERED = b"\1", b"\0"

AHEAD = 4  # tasks of a worker that are submitted at once: the next wait here, not in a scheduler's memory
REDRAWN_S = 1.0
_LONGEST = 300  # characters of an error


def _version() -> str:
    return __version__


class Remote(Generic[TaskT, AnswerT]):
    """A function that workers call: a function of one task and its answer, called with bytes and returning bytes.

    The types of both are those of the function's annotations: MessagePack of msgspec structs, attrs classes and flat numpy
    arrays. Nothing else is accepted, and an executor transports no objects. Errors of sm-profiler, and that of a worker of
    another version, reach the caller as such.
    """

    def __init__(self, function: Callable[[TaskT], AnswerT], version: Callable[[], str] = _version) -> None:
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
            theirs, begin = _version_in(data)
            if theirs != (here := self._version()):
                raise SourceError(
                    f"sm-profiler is {theirs} where the command runs and {here} on a worker: install the same version"
                )
            return _encoded(_ANSWERED, self.function(self._decoders[0].decode(memoryview(data)[begin:])))
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


def _version_in(data: bytes) -> tuple[str, int]:
    end = data.find(0)
    return bytes(data[:end]).decode(errors="replace"), end + 1


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
            done, _ = wait(first, timeout=REDRAWN_S, return_when=FIRST_COMPLETED)
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
    """A line on the terminal: how much is done, by how many workers, and how long the rest will take."""

    def __init__(self, total: int, workers: int, *, noun: str = "files", show: bool | None = None) -> None:
        """Draw nothing yet.

        Args:
            total: the number of things to do.
            workers: the number of workers.
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
