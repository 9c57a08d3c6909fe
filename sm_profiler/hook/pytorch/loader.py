"""DataLoader: how long the loop waits for each batch, and inside the dataloader window how batches come about."""

from __future__ import annotations

import functools
import re
import threading
import time
import weakref
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.formats.event_names import (
    DATALOADER_FETCH,
    DATALOADER_INITIALIZE,
    DATALOADER_ITER,
    DATALOADER_PIN_MEMORY,
    DATALOADER_WORKER,
)
from sm_profiler.hook.pytorch.forward import compiling_check
from sm_profiler.hook.pytorch.worker import FetchTimes, watched
from sm_profiler.hook.steps import METER_MOST_NS, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm_profiler.hook.core import Hook
    from sm_profiler.hook.pytorch.forward import Forwards

STREAM = "_sm_profiler_stream"
TIMES = "_sm_profiler_times"
DATALOADER = "dataloader"


class LoaderStream(Stream):
    """The batches of one iterator, and what is known of its workers once its events are collected."""

    __slots__ = ("__weakref__", "collected", "created_ns", "settings", "times", "workers")

    def __init__(self, iterator: Any, created_ns: int) -> None:
        super().__init__(type(iterator).__name__, weakref.ref(iterator))
        self.created_ns = created_ns
        self.settings: dict[str, Any] = {}  # of the loader; empty until somebody asks
        self.workers: list[int] = []
        self.collected = False  # inside the window at least once
        self.times: FetchTimes | None = None  # what its workers note


class Loaders:
    """Patches the DataLoader's iterators."""

    def __init__(self, hook: Hook, torch: Any, forwards: Forwards) -> None:
        self._hook = hook
        self._torch = torch
        self._forwards = forwards
        self._module = torch.utils.data.dataloader
        self._undo: list[tuple[type, str, Any]] = []
        self._alive: weakref.WeakSet[LoaderStream] = weakref.WeakSet()
        self._regex: tuple[str, re.Pattern[str]] | None = None
        self._last_asked = -1

    def install(self) -> None:
        """Wrap `__next__` and the constructors."""
        base = self._module._BaseDataLoaderIter  # noqa: SLF001 - torch has no public name for it
        multi = self._module._MultiProcessingDataLoaderIter  # noqa: SLF001 - as above
        self._replace(base, "__next__", self._wrap_next)
        self._replace(self._module._SingleProcessDataLoaderIter, "__init__", self._wrap_init)  # noqa: SLF001 - as above
        self._replace(multi, "__init__", lambda original: self._wrap_init(self._with_times(original)))
        self._replace(multi, "_shutdown_workers", self._wrap_shutdown)
        self._hook.on_close.append(self._workers_end_with_job)

    def remove(self) -> None:
        """Put the originals back."""
        for owner, name, original in reversed(self._undo):
            setattr(owner, name, original)
        self._undo.clear()
        if self._workers_end_with_job in self._hook.on_close:
            self._hook.on_close.remove(self._workers_end_with_job)

    def _replace(self, owner: type, name: str, wrap: Callable[[Any], Any]) -> None:
        original = owner.__dict__[name]
        setattr(owner, name, wrap(original))
        self._undo.append((owner, name, original))

    def _wrap_next(self, original: Any) -> Any:  # noqa: C901 - flat on purpose: calls cost time
        hook, tracker, forwards = self._hook, self._hook.tracker, self._forwards
        is_compiling, gradients, get_ident = (
            compiling_check(self._torch),
            self._torch.is_grad_enabled,
            threading.get_ident,
        )
        stream_of, collect, before, windows = self._stream_of, self._collect_batch, self._before_fetch, hook.windows

        @functools.wraps(original)
        def __next__(self: Any) -> Any:  # noqa: N807 - it takes the place of a method of this name
            if is_compiling() or tracker.in_fetch or hook.quiet or get_ident() != forwards.thread:
                return original(self)
            try:
                stream = self.__dict__.get(STREAM) or stream_of(self, perf_counter_ns())
                window = windows.get(DATALOADER)
                worker = None if window is None or window.ended else before(self, stream)
                tracker.fetch_begins()
            except Exception as error:  # noqa: BLE001 - fail open
                hook.broke(error)
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
                        tracker.fetch_ends(stream, start_ns, end_ns, got=got, gradients=gradients())
                        if worker is not None and got:
                            collect(self, stream, worker, start_ns, end_ns)
                        if tracker.metering:
                            tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MOST_NS)
                except Exception as error:  # noqa: BLE001 - fail open
                    tracker.in_fetch = 0
                    hook.broke(error)

        return __next__

    def _wrap_init(self, original: Any) -> Any:
        guard, windows = self._hook.guard, self._hook.windows
        stream_of, created = self._stream_of, self._created

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes the place of a method of this name
            start_ns = perf_counter_ns()
            original(self, *args, **kwargs)
            end_ns = perf_counter_ns()
            try:
                stream = stream_of(self, start_ns)
                if DATALOADER in windows:
                    created(self, stream, end_ns)
            except Exception as error:  # noqa: BLE001 - fail open
                guard.failed(DATALOADER, error)

        return __init__

    def _with_times(self, original: Any) -> Any:
        """Let the workers of an iterator note their times, if a window may ask for them."""
        hook, guard = self._hook, self._hook.guard

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes the place of a method of this name
            times = None
            try:
                window = hook.windows.get(DATALOADER)
                if window is not None and not (window.ended or hook.quiet or guard.is_off(DATALOADER)):
                    loader = args[0] if args else kwargs["loader"]
                    times = FetchTimes(2 * loader.num_workers * (loader.prefetch_factor + 1))
            except Exception as error:  # noqa: BLE001 - fail open
                guard.failed(DATALOADER, error)
            if times is None:
                original(self, *args, **kwargs)
                return
            with watched(times):
                original(self, *args, **kwargs)
            self.__dict__[TIMES] = times

        return __init__

    def _wrap_shutdown(self, original: Any) -> Any:
        guard, workers_end = self._hook.guard, self._workers_end

        @functools.wraps(original)
        def _shutdown_workers(self: Any) -> Any:
            try:
                return original(self)
            finally:
                try:
                    stream = self.__dict__.get(STREAM)
                    if stream is not None:
                        workers_end(stream)
                except Exception as error:  # noqa: BLE001 - fail open
                    guard.failed(DATALOADER, error)

        return _shutdown_workers

    # collecting

    def _stream_of(self, iterator: Any, created_ns: int) -> LoaderStream:
        existing = iterator.__dict__.get(STREAM)
        if existing is not None:
            return existing  # type: ignore[no-any-return]
        stream = iterator.__dict__[STREAM] = LoaderStream(iterator, created_ns)
        batch_size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        if isinstance(batch_size, int) and self._torch.is_grad_enabled():
            self._hook.batch_sizes.add(batch_size)
        return stream

    def _describe(self, iterator: Any, stream: LoaderStream) -> None:
        """What events say of an iterator; without a window, or outside it, nobody asks."""
        if not stream.settings:
            stream.settings = {"num_workers": iterator._num_workers, "pin_memory": bool(iterator._pin_memory)}  # noqa: SLF001 - torch has no public name for it
            stream.workers = [worker.pid for worker in getattr(iterator, "_workers", ())]
            stream.times = iterator.__dict__.pop(TIMES, None)
            self._alive.add(stream)

    def _is_on(self, ahead: int) -> bool:
        """Whether the step that the batch is for is inside the dataloader window."""
        window = self._hook.windows.get(DATALOADER)
        if window is None or window.ended or self._hook.guard.is_off(DATALOADER):
            return False
        step = max(self._hook.tracker.global_step + ahead, self._last_asked)
        self._last_asked = step
        return window.at_step(step, time.time(), time.monotonic())

    def _before_fetch(self, iterator: Any, stream: LoaderStream) -> int | None:
        """The worker that the next batch comes from (-1 for none) if it is to be collected, else None."""
        if not self._is_on(stream.credits + 1):
            return None
        self._describe(iterator, stream)
        stream.collected = True
        try:
            return int(iterator._task_info[iterator._rcvd_idx][0])  # noqa: SLF001 - torch has no public name for it
        except (AttributeError, KeyError, IndexError):
            return -1

    def _collect_batch(self, iterator: Any, stream: LoaderStream, worker: int, start_ns: int, end_ns: int) -> None:
        """A batch of the window came: the loop's wait for it, and what the worker and the pinning thread noted of it."""
        self._collect(DATALOADER_ITER, f"{stream.name}::GetNext", start_ns, end_ns, stream, worker)
        times = stream.times
        if times is None or not getattr(iterator, "_in_order", True):  # out of order, nothing says which one came
            return
        task = iterator._rcvd_idx - 1  # noqa: SLF001 - torch has no public name for it
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

    def _collect(  # noqa: PLR0913, PLR0917 - what an event is made of
        self, phase: str, name: str, start_ns: int, end_ns: int, stream: LoaderStream, worker: int, pid: int = 0
    ) -> None:
        if not self._matches(name):
            return
        args = {"worker_id": worker, **stream.settings}
        if pid:
            args["pid"] = pid
        self._hook.tracker.append((phase, name, start_ns, end_ns, -1, args))

    def _matches(self, name: str) -> bool:
        text = self._hook.profile.collectors[DATALOADER].metrics_regex or ".*"
        if self._regex is None or self._regex[0] != text:
            self._regex = (text, re.compile(text, re.IGNORECASE))
        return bool(self._regex[1].match(name))

    def _workers_end(self, stream: LoaderStream) -> None:
        workers, stream.workers = stream.workers, []
        if stream.collected and not self._hook.quiet:
            end_ns = perf_counter_ns()
            for number, pid in enumerate(workers):
                self._collect(DATALOADER_WORKER, DATALOADER_WORKER, stream.created_ns, end_ns, stream, number, pid)

    def _workers_end_with_job(self) -> None:
        for stream in list(self._alive):
            self._workers_end(stream)
