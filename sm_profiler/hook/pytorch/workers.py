"""A loader's worker processes: the time of each batch and of its pinning, and samples of each worker's stack.

A worker does not have the step number of the loop.  So workers of iterators created while a dataloader window is configured
write two times per batch into a ring shared by all processes of the loader, and the training process reads those of
the batches inside its window.  Samples are summed up by each worker in shared memory.  Workers write no files.

Spawned workers import this module, so it must not import anything heavy.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from importlib import import_module
from multiprocessing.sharedctypes import RawArray
from time import perf_counter_ns  # the same clock in every process of a machine
from types import CodeType
from typing import Any, Protocol

import attrs

from sm_profiler import threads
from sm_profiler.hook.frames import Frames, current_frames, stack_of
from sm_profiler.hook.guard import attempt, pass_on
from sm_profiler.hook.patches import Patches
from sm_profiler.hook.stacks import NEAR_SECONDS, Key, Lengths, Prompt, StackReader, Tally

CELLS = 8  # per batch: task + 1, worker, pid, start, end; task + 1, start, end of pinning
WORKER_NUMBER = 10  # position of the worker's number among its arguments
WORKER = "torch.utils.data._utils.worker"
PIN_MEMORY = "torch.utils.data._utils.pin_memory"


@attrs.frozen
class Fetch:
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

    def fetched(self, task: int, fetch: Fetch) -> None:
        """Store the time of a batch, in a worker."""
        self._put(task % self._places * CELLS, task, (fetch.worker, fetch.pid, fetch.start_ns, fetch.end_ns))

    def pinned(self, task: int, start_ns: int, end_ns: int) -> None:
        """Store the time of its pinning, in the pinning thread."""
        self._put(task % self._places * CELLS + 5, task, (start_ns, end_ns))

    def fetch_of(self, task: int) -> Fetch | None:
        """Return the time of a batch, or None if it is not stored."""
        at = task % self._places * CELLS
        return Fetch(*self._cells[at + 1 : at + 5]) if self._cells[at] == task + 1 else None

    def at(self, place: int) -> Fetch | None:
        """Return the time in a place of the ring, of the latest batch there; None if there was none."""
        at = place % self._places * CELLS
        return Fetch(*self._cells[at + 1 : at + 5]) if self._cells[at] else None

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
    """Queue of a worker's tasks; remembers when the last task arrived."""

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
            attempt(lambda: self._ended(what[0], start_ns, end_ns))  # the worker must deliver its batch regardless
        return self._queue.put(what, *args, **kwargs)

    def _ended(self, task: int, start_ns: int, end_ns: int) -> None:
        if self.ended is not None:
            self.ended((end_ns - start_ns) / 1e9)
        self._note(task, start_ns, end_ns)


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
        sampler = attempt(lambda: self._sampler(watched))  # the worker must deliver its batches regardless
        try:
            return original(*watched)
        finally:
            if sampler is not None:
                attempt(sampler.end)

    def _sampler(self, args: tuple[Any, ...]) -> WorkerSampler | None:
        """Start to sample this worker."""
        if self.board is None or self.module != WORKER or len(args) <= WORKER_NUMBER:
            return None
        entry, outgoing = (args[place] for place in self.queues)
        sampler = WorkerSampler(self.board, args[WORKER_NUMBER], entry, Loop.__call__.__code__)
        outgoing.ended = sampler.task_ended
        sampler.start()
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
        self.times.fetched(task, Fetch(worker, os.getpid(), start_ns, end_ns))


@contextlib.contextmanager
def watched(times: FetchTimes | None, board: Board | None = None) -> Iterator[None]:
    """Let processes and threads that a loader's iterator starts inside the block store their times and samples."""
    patches = Patches(pass_on)
    loops = [(WORKER, "_worker_loop", (2, 3))]
    if times is not None:
        loops.append((PIN_MEMORY, "_pin_memory_loop", (0, 1)))
    try:
        for module, name, queues in loops:
            with contextlib.suppress(ImportError, AttributeError):  # another version of torch: no times
                owner = import_module(module)
                original = getattr(owner, name)
                if not isinstance(original, Loop):
                    patches.put(owner, name, Loop(times, board, module, name, queues, original))
        yield
    finally:
        patches.remove()


SLOT_BYTES = 16_384  # of a worker
MAX_STACKS = 60  # of a worker
DELAY = 1 / 15
SHARE = 0.0025  # of the time: CPU time of a worker's sampler
SAVED = 0.005  # seconds of it that may be saved up
MAX_DELAY = 1.0
PUBLISH_NS = 500_000_000
PHASE = "worker"
_HEAD = struct.Struct("QQ")  # version, odd while the slot is written; length of the text


class Board:
    """The stacks of each worker since it started, as text in shared memory."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._cells: Any = RawArray("B", workers * SLOT_BYTES)

    def put(self, worker: int, text: bytes) -> None:
        """Replace a worker's text, unless it is too long."""
        if worker >= self.workers or len(text) > SLOT_BYTES - _HEAD.size:
            return
        slot = self._slot(worker)
        version = _HEAD.unpack_from(slot)[0]
        _HEAD.pack_into(slot, 0, version + 1, 0)
        slot[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(slot, 0, version + 2, len(text))

    def get(self, worker: int) -> bytes:
        """Return a worker's text, or nothing while it is written."""
        slot = self._slot(worker)
        version, length = _HEAD.unpack_from(slot)
        text = bytes(slot[_HEAD.size : _HEAD.size + length])
        return text if version % 2 == 0 and _HEAD.unpack_from(slot)[0] == version else b""

    def _slot(self, worker: int) -> memoryview:
        return memoryview(self._cells).cast("B")[worker * SLOT_BYTES : (worker + 1) * SLOT_BYTES]


class Tasks(Protocol):
    """State of a worker."""

    waiting: bool  # for a task
    came_ns: int  # when the task arrived


class WorkerSampler:
    """Samples the main thread of a worker while it has a task, in the worker.

    Attributes:
        stop: outermost code of a stack: what is outside belongs to the process that started the worker.
    """

    def __init__(  # each is a part that tests replace
        self,
        board: Board,
        worker: int,
        tasks: Tasks,
        stop: CodeType,
        *,
        frames: Frames = current_frames,
        clock: Callable[[], int] = perf_counter_ns,
        own_cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._board = board
        self._worker = worker
        self._tasks = tasks
        self._reader = StackReader(stop)
        self._frames = frames
        self._clock = clock
        self._own_cpu = own_cpu
        self._thread_id = threading.get_ident()
        self._tally, self._lengths = Tally(), Lengths()
        self._sums: dict[Key, list[float]] = {}
        self._ended = threading.Event()
        self._last_ns = self._published_ns = clock()
        self._task_ns = 0
        self._saved = 0.0
        self._prompt = Prompt()
        self._random = random.Random()  # not a secret; the script's own generator must not be touched

    def start(self) -> None:
        """Start the thread."""
        threads.start(self._run, name="sm-profiler sampler")

    def end(self) -> None:
        """End it, and publish what is left."""
        self._ended.set()
        self._tally.settle()
        self.publish()

    def task_ended(self, seconds: float) -> None:
        """Record the time that a task took."""
        self._lengths.add(seconds)

    def _run(self) -> None:
        try:
            while not self._ended.wait(min(DELAY + max(-self._saved, 0.0) / SHARE, MAX_DELAY) * self._random.uniform(0.5, 1.5)):  # fmt: skip
                before = self._own_cpu()
                self._prompt.wait(self._random.uniform(0, NEAR_SECONDS))
                self.sample(self._clock())
                self._saved = min(self._saved - (self._own_cpu() - before), SAVED)
                threads.hide()
        except Exception:  # noqa: S110 - samples are an extra, and a worker must deliver its batches
            pass

    def sample(self, now_ns: int) -> None:
        """Add a sample if the worker has a task."""
        waiting, stack = self._tasks.waiting, stack_of(self._thread_id, self._frames)
        places, leaf = ((), "") if waiting else self._reader.read(stack)
        del stack  # frames keep what is local to them alive
        seconds, self._last_ns = (now_ns - self._last_ns) / 1e9, now_ns
        self._saved += SHARE * seconds
        if self._tasks.came_ns != self._task_ns:
            self._task_ns = self._tasks.came_ns
            self._tally.settle()
        if places:
            long = bool(self._task_ns) and self._lengths.is_long((now_ns - self._task_ns) / 1e9)
            self._tally.hold((PHASE, long, leaf, places), seconds)
        if now_ns - self._published_ns >= PUBLISH_NS:
            self._published_ns = now_ns
            self.publish()

    def publish(self) -> None:
        """Put the stacks with the most time on the board; drop some until they fit."""
        for key, (seconds, count) in self._tally.take().items():
            found = self._sums.setdefault(key, [0.0, 0])
            found[0] += seconds
            found[1] += count
        ranked = sorted(self._sums.items(), key=lambda item: -item[1][0])[: 4 * MAX_STACKS]
        self._sums = dict(ranked)
        number = MAX_STACKS
        while number:
            text = json.dumps([[*key[1:], *value] for key, value in ranked[:number]]).encode()
            if len(text) <= SLOT_BYTES - _HEAD.size:
                self._board.put(self._worker, text)
                return
            number //= 2


class WorkerStacks:
    """Samples on the boards of all iterators, for the training process."""

    def __init__(self) -> None:
        self._boards: list[tuple[weakref.ref[Any], Board, dict[Key, tuple[float, float]]]] = []

    def clear(self) -> None:
        """Forget all boards."""
        self._boards.clear()

    def add(self, iterator: Any, board: Board) -> None:
        """Read a board until its iterator is gone."""
        self._boards.append((weakref.ref(iterator), board, {}))

    def read(self) -> list[tuple[Key, float, float]]:
        """Return stacks with the seconds and samples that are new since the last call."""
        new: list[tuple[Key, float, float]] = []
        for entry in list(self._boards):
            iterator, board, seen = entry
            gone = iterator() is None
            for worker in range(board.workers):
                text = board.get(worker)
                for long, leaf, places, seconds, count in json.loads(text) if text else ():
                    key = PHASE, bool(long), str(leaf), tuple((file, line, name) for file, line, name in places)
                    own = (PHASE, bool(long), f"{worker}\0{leaf}", key[3])
                    before = seen.get(own, (0.0, 0.0))
                    if seconds > before[0]:
                        seen[own] = (seconds, count)
                        new.append((key, seconds - before[0], count - before[1]))
            if gone:
                self._boards.remove(entry)
        return new
