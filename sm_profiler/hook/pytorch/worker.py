"""How long a loader's workers take for each batch, and its thread for pinning them: noted where it happens, told elsewhere.

A worker cannot know which step the loop is in.  So workers of iterators that begin while a dataloader window is configured
note two times for each batch in a ring that all processes of the loader share, and the process with the loop reads the
notes of those batches that lie inside the window.  Workers write no files.

This is loaded in workers that were spawned: nothing heavy may be imported here.
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

CELLS = 8  # of a note: task + 1, worker, pid, start, end; task + 1, start, end of pinning
WORKER = "torch.utils.data._utils.worker"
PIN_MEMORY = "torch.utils.data._utils.pin_memory"


@attrs.frozen
class Span:
    """Who worked on a batch, and when (monotonic nanoseconds)."""

    worker: int
    pid: int
    start_ns: int
    end_ns: int


class FetchTimes:
    """The last notes of a loader's processes, by the number that the loader gives to each batch of an epoch.

    A batch has its place to itself until as many batches later as there are places, so there must be more of them than
    batches that are under way at once.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._cells: Any = RawArray("q", places * CELLS)

    def fetched(self, task: int, span: Span) -> None:
        """In a worker: a batch was made."""
        self._put(task % self._places * CELLS, task, (span.worker, span.pid, span.start_ns, span.end_ns))

    def pinned(self, task: int, start_ns: int, end_ns: int) -> None:
        """In the pinning thread: it was put into pinned memory."""
        self._put(task % self._places * CELLS + 5, task, (start_ns, end_ns))

    def fetch_of(self, task: int) -> Span | None:
        """What was noted of a batch that came."""
        at = task % self._places * CELLS
        return Span(*self._cells[at + 1 : at + 5]) if self._cells[at] == task + 1 else None

    def pin_of(self, task: int) -> tuple[int, int] | None:
        """Start and end of its pinning."""
        at = task % self._places * CELLS + 5
        return (self._cells[at + 1], self._cells[at + 2]) if self._cells[at] == task + 1 else None

    def _put(self, at: int, task: int, values: tuple[int, ...]) -> None:
        self._cells[at] = 0
        self._cells[at + 1 : at + 1 + len(values)] = values
        self._cells[at] = task + 1


class _Queue:
    """A queue with a note made where something passes; all else is the queue's own."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class Incoming(_Queue):
    """Where a worker's tasks come from."""

    came_ns = 0

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """As the queue's own."""
        got = self._queue.get(*args, **kwargs)
        self.came_ns = perf_counter_ns()
        return got


class Outgoing(_Queue):
    """Where what became of them goes."""

    def __init__(self, queue: Any, incoming: Incoming, note: Callable[[int, int, int], None]) -> None:
        super().__init__(queue)
        self._incoming = incoming
        self._note = note

    def put(self, what: Any, *args: Any, **kwargs: Any) -> Any:
        """As the queue's own; a batch is noted when it is put for the first time."""
        end_ns, start_ns = perf_counter_ns(), self._incoming.came_ns
        self._incoming.came_ns = 0
        if start_ns and isinstance(what[0], int):
            with contextlib.suppress(Exception):  # a worker has nobody to tell, and its batch must go on
                self._note(what[0], start_ns, end_ns)
        return self._queue.put(what, *args, **kwargs)


@attrs.define(eq=False)
class Loop:
    """Takes the place of the function that a loader's process or thread runs, and runs it.

    Attributes:
        times: where the notes go.
        module, name: where the function stands.
        queues: which of its arguments are the queues that tasks come from and go to.
        original: the function; None in a process that was spawned, where it stands in its place.
    """

    times: FetchTimes
    module: str
    name: str
    queues: tuple[int, int]
    original: Callable[..., Any] | None

    def __call__(self, *args: Any) -> Any:
        """Run it."""
        module = import_module(self.module)
        original = self.original or getattr(module, self.name)
        if getattr(module, self.name) is self:  # a process that was forked while this stood there
            setattr(module, self.name, original)
        return original(*self._watched(args))

    def __reduce__(self) -> Any:
        return (Loop, (self.times, self.module, self.name, self.queues, None))

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
        self.times.pinned(task, start_ns, end_ns)

    def _fetched(self, task: int, start_ns: int, end_ns: int) -> None:
        worker = import_module(WORKER).get_worker_info().id
        self.times.fetched(task, Span(worker, os.getpid(), start_ns, end_ns))


@contextlib.contextmanager
def watched(times: FetchTimes) -> Iterator[None]:
    """Processes and threads that a loader's iterator starts meanwhile note their times."""
    put: list[Loop] = []
    try:
        for module, name, queues in ((WORKER, "_worker_loop", (2, 3)), (PIN_MEMORY, "_pin_memory_loop", (0, 1))):
            with contextlib.suppress(ImportError, AttributeError):  # a torch that has it elsewhere: no notes
                original = getattr(import_module(module), name)
                if not isinstance(original, Loop):
                    loop = Loop(times, module, name, queues, original)
                    setattr(import_module(module), name, loop)
                    put.append(loop)
        yield
    finally:
        for loop in put:
            setattr(import_module(loop.module), loop.name, loop.original)
