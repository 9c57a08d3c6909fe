"""Times that a loader's workers take for each batch, and its pinning thread for pinning it.

A worker does not have the step number of the loop.  So workers of iterators created while a dataloader window is configured
write two times per batch into a ring shared by all processes of the loader, and the training process reads those of
the batches inside its window.  Workers write no files.

Spawned workers import this module, so it must not import anything heavy.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from importlib import import_module
from multiprocessing.sharedctypes import RawArray
from time import perf_counter_ns  # the same clock in every process of a machine
from typing import Any

import attrs

from sm_profiler.hook.foreign import pass_on
from sm_profiler.hook.pytorch.worker_samples import Board, WorkerSampler

CELLS = 8  # per batch: task + 1, worker, pid, start, end; task + 1, start, end of pinning
WORKER_NUMBER = 10  # position of the worker's number among its arguments
WORKER = "torch.utils.data._utils.worker"
PIN_MEMORY = "torch.utils.data._utils.pin_memory"


@attrs.frozen
class Span:
    """Worker of a batch, and its start and end in monotonic nanoseconds."""

    worker: int
    pid: int
    start_ns: int
    end_ns: int


class FetchTimes:
    """Ring of the latest times, indexed by the number of the batch in its epoch.

    A slot is overwritten `places` batches later, so there must be more slots than batches in flight.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._cells: Any = RawArray("q", places * CELLS)

    def fetched(self, task: int, span: Span) -> None:
        """Store the time of a batch, in a worker."""
        self._put(task % self._places * CELLS, task, (span.worker, span.pid, span.start_ns, span.end_ns))

    def pinned(self, task: int, start_ns: int, end_ns: int) -> None:
        """Store the time of its pinning, in the pinning thread."""
        self._put(task % self._places * CELLS + 5, task, (start_ns, end_ns))

    def fetch_of(self, task: int) -> Span | None:
        """Return the time of a batch, or None if it is not stored."""
        at = task % self._places * CELLS
        return Span(*self._cells[at + 1 : at + 5]) if self._cells[at] == task + 1 else None

    def at(self, place: int) -> Span | None:
        """Return the time in one place of the ring, of the latest batch there; None if there was none."""
        at = place % self._places * CELLS
        return Span(*self._cells[at + 1 : at + 5]) if self._cells[at] else None

    def pin_of(self, task: int) -> tuple[int, int] | None:
        """Return start and end of its pinning, or None."""
        at = task % self._places * CELLS + 5
        return (self._cells[at + 1], self._cells[at + 2]) if self._cells[at] == task + 1 else None

    def _put(self, at: int, task: int, values: tuple[int, ...]) -> None:
        self._cells[at] = 0
        self._cells[at + 1 : at + 1 + len(values)] = values
        self._cells[at] = task + 1


class _Queue:
    """Proxy of a queue."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class Incoming(_Queue):
    """Queue of a worker's tasks; remembers when the last one arrived."""

    came_ns = 0
    waiting = False

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Get a task."""
        self.waiting = True
        got = self._queue.get(*args, **kwargs)
        self.came_ns = perf_counter_ns()
        self.waiting = False
        return got


class Outgoing(_Queue):
    """Queue of a worker's results; stores the time of each."""

    def __init__(self, queue: Any, incoming: Incoming, note: Callable[[int, int, int], None]) -> None:
        super().__init__(queue)
        self._incoming = incoming
        self._note = note
        self.ended: Callable[[float], None] | None = None  # takes the seconds of a task

    def put(self, what: Any, *args: Any, **kwargs: Any) -> Any:
        """Put a result; a batch that is put again is not stored again."""
        end_ns, start_ns = perf_counter_ns(), self._incoming.came_ns
        self._incoming.came_ns = 0
        if start_ns and isinstance(what[0], int):
            try:
                if self.ended is not None:
                    self.ended((end_ns - start_ns) / 1e9)
                self._note(what[0], start_ns, end_ns)
            except Exception as error:  # the worker must deliver its batch regardless
                pass_on(error)
        return self._queue.put(what, *args, **kwargs)


@attrs.define(eq=False)
class Loop:
    """Replaces the function that a loader's process or thread runs, and runs it with proxies of its queues.

    Attributes:
        times: ring for the times; None if no window needs them.
        board: shared memory for the samples of workers; None if the sampler is off.
        module, name: location of the function.
        queues: positions of the queues of tasks and results among its arguments.
        original: the function; None in a spawned process, in which it is not replaced.
    """

    times: FetchTimes | None
    board: Board | None
    module: str
    name: str
    queues: tuple[int, int]
    original: Callable[..., Any] | None

    def __call__(self, *args: Any) -> Any:
        """Run the function."""
        module = import_module(self.module)
        original = self.original or getattr(module, self.name)
        if getattr(module, self.name) is self:  # a process that was forked while the function was replaced
            setattr(module, self.name, original)
        watched = self._watched(args)
        sampler = self._sampler(watched)
        if sampler is None:
            return original(*watched)
        try:
            return original(*watched)
        finally:
            try:
                sampler.end()
            except Exception as error:  # fail open
                pass_on(error)

    def _sampler(self, args: tuple[Any, ...]) -> WorkerSampler | None:
        """Start to sample this worker."""
        if self.board is None or self.module != WORKER or len(args) <= WORKER_NUMBER:
            return None
        try:
            entry, outgoing = (args[place] for place in self.queues)
            stop = Loop.__call__.__code__
            sampler = WorkerSampler(self.board, args[WORKER_NUMBER], entry, stop)
            outgoing.ended = sampler.task_ended
            sampler.start()
        except Exception as error:  # the worker must deliver its batches regardless
            pass_on(error)
            return None
        return sampler

    def __reduce__(self) -> Any:
        return (Loop, (self.times, self.board, self.module, self.name, self.queues, None))

    def _watched(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        incoming, outgoing = self.queues
        if len(args) <= outgoing:
            return args
        watched = list(args)
        watched[incoming] = entry = Incoming(args[incoming])
        watched[outgoing] = Outgoing(
            args[outgoing], entry, self._pinned if self.module == PIN_MEMORY else self._fetched
        )
        return tuple(watched)

    def _pinned(self, task: int, start_ns: int, end_ns: int) -> None:
        if self.times is not None:
            self.times.pinned(task, start_ns, end_ns)

    def _fetched(self, task: int, start_ns: int, end_ns: int) -> None:
        if self.times is None:
            return
        worker = import_module(WORKER).get_worker_info().id
        self.times.fetched(task, Span(worker, os.getpid(), start_ns, end_ns))


@contextlib.contextmanager
def watched(times: FetchTimes | None, board: Board | None = None) -> Iterator[None]:
    """Let processes and threads that a loader's iterator starts inside the block store their times and samples."""
    put: list[Loop] = []
    loops = [(WORKER, "_worker_loop", (2, 3))]
    if times is not None:
        loops.append((PIN_MEMORY, "_pin_memory_loop", (0, 1)))
    try:
        for module, name, queues in loops:
            with contextlib.suppress(ImportError, AttributeError):  # another version of torch: no times
                original = getattr(import_module(module), name)
                if not isinstance(original, Loop):
                    loop = Loop(times, board, module, name, queues, original)
                    setattr(import_module(module), name, loop)
                    put.append(loop)
        yield
    finally:
        for loop in put:
            setattr(import_module(loop.module), loop.name, loop.original)
