"""Samples of a loader's workers: each sums up its own stacks in shared memory, and the training process reads them.

Workers write no files. Spawned workers import this module, so it must not import anything heavy.
"""

from __future__ import annotations

import json
import random
import struct
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray
from time import perf_counter_ns
from types import CodeType
from typing import Any, Protocol

from sm_profiler.hook.other_threads import Frames, current_frames, stack_of
from sm_profiler.hook.stacks import NEAR_SECONDS, Key, Lengths, Prompt, StackReader, Tally

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
        """Replace a worker's text; one that is too long is not put."""
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
        threading.Thread(target=self._run, name="sm-profiler sampler", daemon=True).start()

    def end(self) -> None:
        """End it, and publish what is left."""
        self._ended.set()
        self._tally.settle()
        self.publish()

    def task_ended(self, seconds: float) -> None:
        """Note the time that a task took."""
        self._lengths.add(seconds)

    def _run(self) -> None:
        try:
            while not self._ended.wait(min(DELAY + max(-self._saved, 0.0) / SHARE, MAX_DELAY) * self._random.uniform(0.5, 1.5)):  # fmt: skip
                before = self._own_cpu()
                self._prompt.wait(self._random.uniform(0, NEAR_SECONDS))
                self.sample(self._clock())
                self._saved = min(self._saved - (self._own_cpu() - before), SAVED)
        except Exception:  # noqa: S110 - samples are an extra, and a worker must deliver its batches
            pass

    def sample(self, now_ns: int) -> None:
        """Add one sample, if the worker has a task."""
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
