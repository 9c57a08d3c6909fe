"""DataLoader: how long the loop waits for each batch and, inside the dataloader window, how each batch was loaded."""

from __future__ import annotations

import functools
import resource
import threading
import time
import weakref
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.config.profile import NamePattern
from sm_profiler.formats.event_names import (
    DATALOADER_FETCH,
    DATALOADER_INITIALIZE,
    DATALOADER_ITER,
    DATALOADER_PIN_MEMORY,
    DATALOADER_WORKER,
)
from sm_profiler.formats.recorded import LoaderWorkers
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.frames import code_of
from sm_profiler.hook.guard import pass_on
from sm_profiler.hook.pytorch.forward import compiling_check
from sm_profiler.hook.pytorch.workers import Board, FetchTimes, WorkerStacks, watched
from sm_profiler.hook.steps import METER_MAX_NS, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm_profiler.config import Profile
    from sm_profiler.hook.pytorch.forward import Forwards
    from sm_profiler.hook.rest import Rest
    from sm_profiler.hook.session import Session

STREAM = "_sm_profiler_stream"
TIMES = "_sm_profiler_times"
DATALOADER = "dataloader"
MOST_AHEAD = 16  # batches of a rest beyond two for each of its steps


class LoaderStream(Stream):
    """Batches of one iterator, and its workers once its events are collected."""

    __slots__ = ("__weakref__", "collected", "created_ns", "ready_ns", "settings", "times", "workers")

    def __init__(self, iterator: Any, created_ns: int) -> None:
        super().__init__(type(iterator).__name__, weakref.ref(iterator))
        self.created_ns = created_ns
        self.ready_ns = 0  # end of its creation, until the first batch is requested
        self.settings: dict[str, Any] = {}  # of the loader; empty until an event needs them
        self.workers: list[int] = []
        self.collected = False  # inside the window at least once
        self.times: FetchTimes | None = None  # as measured by its workers


class DataLoaderCollector(Collector):
    """Wraps the DataLoader's iterators: waits are always recorded, all else inside the window."""

    name = DATALOADER
    follows_steps = False  # batches are fetched ahead of their step

    def __init__(self, session: Session, torch: Any, forwards: Forwards) -> None:
        self._session = session
        self._torch = torch
        self._forwards = forwards
        self._module = torch.utils.data.dataloader
        self._undo: list[tuple[type, str, Any]] = []
        self.fetching: Any = None  # code of torch's `__next__`
        self._alive: weakref.WeakSet[LoaderStream] = weakref.WeakSet()
        self._names = NamePattern(_regex(session.profile))
        self._last_step = -1
        self._stacks = WorkerStacks()

    def install(self) -> None:
        """Wrap `__next__` and the constructors."""
        base = self._module._BaseDataLoaderIter  # torch has no public name for it
        multi = self._module._MultiProcessingDataLoaderIter
        self.fetching = base.__next__.__code__
        self._replace(base, "__next__", self._wrap_next)
        self._replace(self._module._SingleProcessDataLoaderIter, "__init__", self._wrap_init)
        self._replace(multi, "__init__", lambda original: self._wrap_init(self._with_times(original)))
        self._replace(multi, "_shutdown_workers", self._wrap_shutdown)

    def remove(self) -> None:
        """Put the originals back."""
        for owner, name, original in reversed(self._undo):
            setattr(owner, name, original)
        self._undo.clear()

    def profile_changed(self, profile: Profile) -> None:
        """Use the changed filter; without a configuration the old one applies to workers that are still alive."""
        self._names = NamePattern(_regex(profile, self._names.text))

    def forked(self) -> None:
        """Forget the parent's workers."""
        self._stacks.clear()

    def close(self) -> None:
        """Record the lives of the workers that still run."""
        for stream in list(self._alive):
            self._workers_end(stream)

    def _replace(self, owner: type, name: str, wrap: Callable[[Any], Any]) -> None:
        original = owner.__dict__[name]
        setattr(owner, name, wrap(original))
        self._undo.append((owner, name, original))

    def _wrap_next(self, original: Any) -> Any:  # flat on purpose: calls cost time
        session, tracker, forwards = self._session, self._session.tracker, self._forwards
        is_compiling, gradients, get_ident = (
            compiling_check(self._torch),
            self._torch.is_grad_enabled,
            threading.get_ident,
        )
        stream_of, began, collect, before, windows = (
            self._stream_of,
            self._began,
            self._collect_batch,
            self._before_fetch,
            session.schedule.windows,
        )
        at_rest = self._next_at_rest(original)

        def is_handed_on(iterator: Any) -> bool:
            try:
                return forwards.takes_over(forwards.relayed and tracker.may_hand_on(iterator.__dict__.get(STREAM)))
            except Exception as error:  # fail open
                session.fail(error)
                return False

        @functools.wraps(original)
        def __next__(self: Any) -> Any:  # flat on purpose; replaces a method of this name
            rest = tracker.rest
            if rest is not None and get_ident() == forwards.thread:
                if self.__dict__.get(STREAM, rest) is rest.stream:
                    if not (rest.since_ns and rest.evaluates):  # else the loop's batches are evaluated
                        return at_rest(self, rest)
                elif rest.evaluates and ((window := windows.get(DATALOADER)) is None or window.ended):
                    return original(self)
            foreign = get_ident() != forwards.thread
            if is_compiling() or tracker.in_fetch or session.quiet or (foreign and not is_handed_on(self)):
                return original(self)
            try:
                stream = self.__dict__.get(STREAM) or stream_of(self, perf_counter_ns())
                window = windows.get(DATALOADER)
                worker = None if window is None or window.ended else before(self, stream)
                since_ns = began(stream, perf_counter_ns()) if stream.ready_ns else 0
                tracker.fetch_begins()
            except Exception as error:  # fail open
                session.fail(error)
                return original(self)
            start_ns = perf_counter_ns()
            got = failed = False
            try:
                batch = original(self)
                got = True
            except StopIteration:
                raise
            except BaseException:
                failed = True
                raise
            else:
                return batch
            finally:
                end_ns = perf_counter_ns()
                try:
                    if failed:
                        tracker.fetch_failed()
                    else:
                        tracker.fetch_ends(stream, since_ns or start_ns, end_ns, got=got, gradients=gradients())
                        if worker is not None and got:
                            collect(self, stream, worker, start_ns, end_ns)
                        if got and session.padding.left > 0 and gradients():
                            with session.work.unrecorded():
                                session.padding.see(batch)
                        if tracker.metering:
                            tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MAX_NS)
                except Exception as error:  # fail open
                    tracker.in_fetch = 0
                    session.fail(error)

        return __next__

    def is_done(self) -> bool:
        """Return whether no window needs more of a batch than its arrival."""
        window = self._session.schedule.windows.get(DATALOADER)
        return window is None or window.ended or not self._session.tracker.reads_loader

    def _next_at_rest(self, original: Any) -> Callable[[Any, Rest], Any]:
        """Return what fetches a batch while only its arrival is noted."""
        tracker = self._session.tracker

        def __next__(iterator: Any, rest: Rest) -> Any:  # the name that a traceback shows
            tracker.in_fetch = 1
            try:
                batch = original(iterator)
            except BaseException as error:
                self._ended_at_rest(rest.stream, exhausted=isinstance(error, StopIteration))
                raise
            arrived_ns = perf_counter_ns()
            tracker.in_fetch = 0
            if tracker.rest is rest:
                rest.arrivals.append(arrived_ns)
                if len(rest.arrivals) <= 2 * rest.steps + MOST_AHEAD:
                    return batch
            self._arrived_too_late(rest, arrived_ns)
            return batch

        return __next__

    def _arrived_too_late(self, rest: Rest, now_ns: int) -> None:
        """Report a batch again: the rest has ended, or goes on without updates."""
        tracker = self._session.tracker
        try:
            if tracker.rest is rest:  # the optimizer steps no more: gradients are accumulated, or are infinite
                tracker.end_rest()
            elif isinstance(rest.stream, Stream) and not self._session.quiet:  # it ended while the batch was fetched
                tracker.in_fetch = 1
                tracker.fetch_ends(rest.stream, now_ns, now_ns, got=True, gradients=self._torch.is_grad_enabled())
        except Exception as error:  # fail open
            tracker.in_fetch = 0
            self._session.fail(error)

    def _ended_at_rest(self, stream: Any, *, exhausted: bool) -> None:
        """Let the rest end: the loader has no more batches, or has failed."""
        tracker, now_ns = self._session.tracker, perf_counter_ns()
        try:
            tracker.end_rest()
            if exhausted:
                tracker.fetch_ends(stream, now_ns, now_ns, got=False, gradients=self._torch.is_grad_enabled())
            else:
                tracker.fetch_failed()
        except Exception as error:  # fail open
            tracker.in_fetch = 0
            self._session.fail(error)

    def _wrap_init(self, original: Any) -> Any:
        guard, windows = self._session.guard, self._session.schedule.windows
        stream_of, created, changed = self._stream_of, self._created, self._workers_changed

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # replaces a method of this name
            start_ns = perf_counter_ns()
            original(self, *args, **kwargs)
            end_ns = perf_counter_ns()
            try:
                stream = stream_of(self, start_ns)
                stream.ready_ns = end_ns
                if DATALOADER in windows:
                    created(self, stream, end_ns)
                changed(self, "start", start_ns, end_ns)
            except Exception as error:  # fail open
                guard.failed(DATALOADER, error)

        return __init__

    def _with_times(self, original: Any) -> Any:
        """Let the workers of an iterator record their samples, and their times if a window may need them."""
        session, guard, stacks = self._session, self._session.guard, self._stacks

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # replaces a method of this name
            times = board = None
            sampler = session.sampler
            try:
                shares = resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY  # memory is a file
                loader = args[0] if args else kwargs["loader"]
                window = session.schedule.windows.get(DATALOADER)
                if shares and window is not None and not (window.ended or session.quiet or session.is_off(DATALOADER)):
                    times = FetchTimes(2 * loader.num_workers * (loader.prefetch_factor + 1))
                if shares and sampler is not None and not session.quiet and not session.is_off(sampler.name):
                    board = Board(loader.num_workers)
            except Exception as error:  # fail open
                guard.failed(DATALOADER, error)
            if times is None and board is None:
                original(self, *args, **kwargs)
                return
            with watched(times, board):
                original(self, *args, **kwargs)
            self.__dict__[TIMES] = times
            if board is not None and sampler is not None:
                stacks.add(self, board)
                sampler.read_also(stacks)

        return __init__

    def _wrap_shutdown(self, original: Any) -> Any:
        guard, workers_end, changed = self._session.guard, self._workers_end, self._workers_changed

        @functools.wraps(original)
        def _shutdown_workers(self: Any) -> Any:
            start_ns = perf_counter_ns()
            again = self.__dict__.get("_shutdown", True)
            try:
                return original(self)
            finally:
                try:
                    if not again:
                        changed(self, "stop", start_ns, perf_counter_ns())
                    stream = self.__dict__.get(STREAM)
                    if stream is not None:
                        workers_end(stream)
                except Exception as error:  # fail open
                    guard.failed(DATALOADER, error)

        return _shutdown_workers

    # collecting

    def _stream_of(self, iterator: Any, created_ns: int) -> LoaderStream:
        existing = iterator.__dict__.get(STREAM)
        if existing is not None:
            return existing  # type: ignore[no-any-return]
        stream = iterator.__dict__[STREAM] = LoaderStream(iterator, created_ns)
        try:
            batch_size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
            collate = code_of(getattr(iterator, "_collate_fn", None))
        except Exception as error:  # a property of the script's
            pass_on(error)
            batch_size = collate = None
        if isinstance(batch_size, int) and self._torch.is_grad_enabled():
            self._session.saw_batch_size(batch_size)
            self._session.saw_collate(collate)
            self._session.saw_workers(int(iterator._num_workers))  # torch has no public name for it
        return stream

    def _began(self, stream: LoaderStream, start_ns: int) -> int:
        """Return when the loop began to wait for an iterator's first batch, if that was when it started the workers; else 0.

        An iterator that the script creates ahead delays no step, and what the first one of all takes is part of the
        job's start.
        """
        ready_ns, stream.ready_ns = stream.ready_ns, 0
        step, latest_ns = self._session.tracker.progress
        at_once = start_ns - ready_ns <= ready_ns - stream.created_ns
        return stream.created_ns if step >= 0 and latest_ns <= stream.created_ns and at_once else 0

    def _describe(self, iterator: Any, stream: LoaderStream) -> None:
        """Read the settings of an iterator for its events; needed only inside a window."""
        if not stream.settings:
            stream.settings = {
                "num_workers": iterator._num_workers,
                "pin_memory": bool(iterator._pin_memory),
            }  # torch has no public name for it
            stream.workers = [worker.pid for worker in getattr(iterator, "_workers", ())]
            stream.times = iterator.__dict__.pop(TIMES, None)
            self._alive.add(stream)

    def _is_on(self, ahead: int) -> bool:
        """Return whether the step that the batch is for is inside the dataloader window."""
        session = self._session
        window = session.schedule.windows.get(DATALOADER)
        if window is None or window.ended or session.is_off(DATALOADER):
            return False
        self._last_step = step = max(session.tracker.global_step + ahead, self._last_step)
        return window.at_step(step, time.time(), time.monotonic())

    def _before_fetch(self, iterator: Any, stream: LoaderStream) -> int | None:
        """Return the worker that loads the next batch (-1 without workers), or None if the batch is not to be collected."""
        if not self._is_on(stream.credits + 1):
            return None
        self._describe(iterator, stream)
        stream.collected = True
        try:
            return int(iterator._task_info[iterator._rcvd_idx][0])  # torch has no public name for it
        except (AttributeError, KeyError, IndexError) as error:
            pass_on(error)
            return -1

    def _collect_batch(self, iterator: Any, stream: LoaderStream, worker: int, start_ns: int, end_ns: int) -> None:
        """Record a batch of the window: the loop's wait for it, its worker's time and its pinning."""
        self._collect(DATALOADER_ITER, f"{stream.name}::GetNext", start_ns, end_ns, stream, worker)
        times = stream.times
        if times is None or not getattr(iterator, "_in_order", True):  # out of order, the batch has no known number
            return
        task = iterator._rcvd_idx - 1  # torch has no public name for it
        fetch, pin = times.fetch_of(task), times.pin_of(task)
        if fetch is not None:
            spent = fetch.start_ns, fetch.end_ns
            self._collect(DATALOADER_FETCH, DATALOADER_FETCH, *spent, stream, fetch.worker, fetch.pid)
            if pin is not None and pin[0] >= fetch.end_ns:
                self._collect(DATALOADER_PIN_MEMORY, DATALOADER_PIN_MEMORY, *pin, stream, fetch.worker)

    def _created(self, iterator: Any, stream: LoaderStream, end_ns: int) -> None:
        if self._is_on(1):
            self._describe(iterator, stream)
            self._collect(DATALOADER_INITIALIZE, f"{stream.name}.__init__", stream.created_ns, end_ns, stream, -1)

    def _collect(  # the parts of an event
        self, phase: str, name: str, start_ns: int, end_ns: int, stream: LoaderStream, worker: int, pid: int = 0
    ) -> None:
        if not self._names.matches(name):
            return
        args = {"worker_id": worker, **stream.settings}
        if pid:
            args["pid"] = pid
        self._session.tracker.append((phase, name, start_ns, end_ns, -1, args))

    def _workers_changed(self, iterator: Any, change: str, start_ns: int, end_ns: int) -> None:
        """Record that an iterator of the training thread started or stopped its worker processes."""
        workers = int(iterator._num_workers)  # torch has no public name for it
        if workers and not self._session.quiet and threading.get_ident() == self._forwards.thread:
            self._session.append(LoaderWorkers(num_workers=workers).span(change, start_ns, end_ns))

    def _workers_end(self, stream: LoaderStream) -> None:
        workers, stream.workers = stream.workers, []
        if stream.collected and not self._session.quiet:
            end_ns = perf_counter_ns()
            for number, pid in enumerate(workers):
                self._collect(DATALOADER_WORKER, DATALOADER_WORKER, stream.created_ns, end_ns, stream, number, pid)


def _regex(profile: Profile, default: str = "") -> str:
    config = profile.collectors.get(DATALOADER)
    return default if config is None else config.metrics_regex
