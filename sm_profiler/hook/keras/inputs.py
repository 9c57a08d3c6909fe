"""The input of Keras's loops: what it is, how long the loop waits for a batch, and how long a PyDataset takes for one."""

from __future__ import annotations

import functools
import os
import threading
import time
from importlib import import_module
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.config.name_pattern import NamePattern
from sm_profiler.formats.event_names import (
    DATALOADER_FETCH,
    DATALOADER_ITER,
    DATALOADER_WAIT,
    INPUT,
)
from sm_profiler.hook.caller import is_library
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.pytorch.workers import FetchTimes, Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm_profiler.config import Profile
    from sm_profiler.hook.patches import Patches
    from sm_profiler.hook.session import Session

DATALOADER = "dataloader"
ADAPTERS = "keras.src.trainers.data_adapters"
KINDS = {
    "PyDatasetAdapter": "PyDataset",
    "TFDatasetAdapter": "tf.data",
    "TorchDataLoaderAdapter": "DataLoader",
    "GrainDatasetAdapter": "grain",
    "GeneratorDataAdapter": "generator",
    "ArrayDataAdapter": "arrays",
}
PLACES = 256  # batches that several processes may have in flight


class Waits:
    """An iterable of batches whose iterators time each fetch."""

    def __init__(self, inputs: Inputs, iterable: Any, kind: str) -> None:
        self._inputs = inputs
        self._iterable = iterable
        self._kind = kind

    def __iter__(self) -> Iterator[Any]:
        return TimedIterator(self._inputs, iter(self._iterable), self._kind)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterable, name)


class TimedIterator:
    """Iterates as the iterator inside does, and notes how long it takes."""

    def __init__(self, inputs: Inputs, iterator: Iterator[Any], kind: str) -> None:
        self._inputs = inputs
        self._iterator = iterator
        self._kind = kind

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        inputs = self._inputs
        try:
            counts = inputs.begins()
        except Exception as error:  # fail open
            inputs.failed_at(error)
            counts = False
        if not counts:
            return next(self._iterator)
        start = perf_counter_ns()
        got = False
        try:
            batch = next(self._iterator)
            got = True
            return batch
        finally:
            try:
                inputs.ends(self._kind, start, perf_counter_ns(), got=got)
            except Exception as error:  # fail open
                inputs.failed_at(error)


class Inputs(Collector):
    """Records the kind of input, waits on the JAX backend, and fetches of PyDatasets inside the dataloader window.

    On the TensorFlow backend batches are fetched inside the graph, and on the torch backend by a DataLoader: the adapters
    of these measure the wait.
    """

    name = DATALOADER
    follows_steps = False  # batches are fetched ahead of their step

    def __init__(self, session: Session, backend: str) -> None:
        self._session = session
        self._backend = backend
        self._settings: dict[str, Any] = {}
        self._pending: list[tuple[str, dict[str, Any]]] = []
        self._seen: set[tuple[Any, ...]] = set()
        self._times: list[tuple[FetchTimes, dict[int, int]]] = []  # of enqueuers with processes, and what was read
        self._enqueuers: dict[int, FetchTimes] = {}
        self._workers: dict[int, int] = {}  # thread → its number
        self._names = NamePattern(_regex(session.profile))

    def install(self, patches: Patches) -> None:
        """Patch the iterators of epochs and the datasets."""
        iterators = import_module("keras.src.trainers.epoch_iterator")
        patches.replace(iterators.EpochIterator, "__init__", self._wrap_init)
        if self._backend == "jax":
            trainer = import_module("keras.src.backend.jax.trainer")
            patches.replace(trainer.JAXEpochIterator, "_get_iterator", self._wrap_get_iterator)
        datasets = import_module(f"{ADAPTERS}.py_dataset_adapter")
        patches.replace(datasets.PyDatasetAdapter, "_get_iterator", self._wrap_single)
        patches.replace(datasets, "get_index", self._wrap_get_index)
        patches.replace(datasets.PyDatasetEnqueuer, "start", self._wrap_start)

    def remove(self) -> None:
        """Forget the input."""
        self._enqueuers.clear()
        self._times.clear()

    # what the input is

    def _wrap_init(self, original: Any) -> Any:
        @functools.wraps(original)
        def __init__(iterator: Any, *args: Any, **kwargs: Any) -> None:  # replaces a method of this name
            original(iterator, *args, **kwargs)
            try:
                if not self._session.quiet:
                    self._describe(iterator.data_adapter)
            except Exception as error:  # fail open
                self._session.switch_off(self, error)

        return __init__

    def _describe(self, adapter: Any) -> None:
        kind = KINDS.get(type(adapter).__name__, type(adapter).__name__)
        args: dict[str, Any] = {"kind": kind, "backend": self._backend}
        dataset = getattr(adapter, "py_dataset", None)
        if dataset is not None:
            workers = int(dataset.workers) if getattr(adapter, "enqueuer", None) is not None else 0
            args |= {"num_workers": workers, "pin_memory": False, "worker_id": -1}
            args |= {"processes": bool(dataset.use_multiprocessing), **_defined(type(dataset), "__getitem__")}
            self._settings = {"num_workers": workers, "pin_memory": False}
        size = getattr(adapter, "batch_size", None)
        if isinstance(size, int):
            self._session.saw_batch_size(size)
        key = tuple(sorted(args.items()))
        if key not in self._seen:
            self._seen.add(key)
            self._pending.append((kind, args))
            self._record_pending()

    def _record_pending(self) -> None:
        if self._session.is_recording:
            now = perf_counter_ns()
            while self._pending:
                kind, args = self._pending.pop(0)
                self._session.append((INPUT, kind, now, now, -1, args))

    def start(self) -> None:
        """Record what the input is."""
        self._record_pending()

    # waits

    def _wrap_get_iterator(self, original: Any) -> Any:
        @functools.wraps(original)
        def _get_iterator(iterator: Any) -> Any:
            iterable = original(iterator)
            if self._session.quiet:
                return iterable
            adapter = type(iterator.data_adapter).__name__
            return Waits(self, iterable, KINDS.get(adapter, adapter))

        return _get_iterator

    def begins(self) -> bool:
        """Note that the loop requests a batch; return whether its wait counts."""
        session = self._session
        tracker = session.tracker
        if session.quiet or tracker.in_fetch or threading.get_ident() != session.training_thread():
            return False
        tracker.in_fetch += 1
        return True

    def ends(self, kind: str, start_ns: int, end_ns: int, *, got: bool) -> None:
        """Note that a batch arrived."""
        session = self._session
        tracker = session.tracker
        tracker.in_fetch = 0
        if not got:
            return
        if tracker.is_open:
            tracker.waited(kind, end_ns - start_ns)
        elif session.is_recording:
            tracker.append((DATALOADER_WAIT, kind, start_ns, end_ns, tracker.number + 1, None))
        if self._is_on():
            self._collect(DATALOADER_ITER, f"{kind}::GetNext", Span(-1, 0, start_ns, end_ns))

    def failed_at(self, error: Exception) -> None:
        """React to an error of `begins` or `ends`: the training goes on without the hook."""
        self._session.fail(error)

    # fetches of PyDatasets

    def _wrap_single(self, original: Any) -> Any:
        @functools.wraps(original)
        def _get_iterator(adapter: Any) -> Any:
            generator = original(adapter)
            if adapter.enqueuer is not None or self._session.quiet:
                return generator
            return self._each(generator)

        return _get_iterator

    def _each(self, generator: Iterator[Any]) -> Iterator[Any]:
        while True:
            start = perf_counter_ns()
            try:
                batch = next(generator)
            except StopIteration:
                return
            self._fetched(start, perf_counter_ns())
            yield batch

    def _fetched(self, start_ns: int, end_ns: int) -> None:
        try:
            if self._is_on():
                span = Span(self._worker(), 0, start_ns, end_ns)
                self._collect(DATALOADER_FETCH, DATALOADER_FETCH, span)
        except Exception as error:  # fail open
            self._session.guard.failed(DATALOADER, error)

    def _worker(self) -> int:
        """Return the number of the thread that fetches, in the order of their first fetches."""
        return self._workers.setdefault(threading.get_ident(), len(self._workers))

    def _wrap_get_index(self, original: Any) -> Any:
        parent = os.getpid()

        @functools.wraps(original)
        def get_index(uid: int, index: int) -> Any:
            start = perf_counter_ns()
            batch = original(uid, index)
            end = perf_counter_ns()
            if os.getpid() == parent:
                self._fetched(start, end)
            else:
                times = self._enqueuers.get(uid)
                if times is not None:
                    times.fetched(index, Span(os.getpid(), os.getpid(), start, end))
            return batch

        return get_index

    def _wrap_start(self, original: Any) -> Any:
        """Give the processes of an enqueuer memory for their times, before they are forked."""

        @functools.wraps(original)
        def start(enqueuer: Any) -> Any:
            try:
                window = self._session.schedule.windows.get(DATALOADER)
                wanted = window is not None and not window.ended and not self._session.quiet
                if wanted and enqueuer.py_dataset.use_multiprocessing and enqueuer.uid not in self._enqueuers:
                    times = self._enqueuers[enqueuer.uid] = FetchTimes(PLACES)
                    self._times.append((times, {}))
            except Exception as error:  # fail open
                self._session.guard.failed(DATALOADER, error)
            return original(enqueuer)

        return start

    def beat(self) -> None:
        """Record the times of other processes, on the recorder's thread."""
        for times, read in self._times:
            for place in range(PLACES):
                span = times.at(place)
                if span is not None and read.get(place) != span.start_ns:
                    read[place] = span.start_ns
                    if self._is_on():
                        self._collect(DATALOADER_FETCH, DATALOADER_FETCH, span)

    def close(self) -> None:
        """Record the last times."""
        self.beat()

    def profile_changed(self, profile: Profile) -> None:
        """Use the changed filter."""
        self._names = NamePattern(_regex(profile))

    def forked(self) -> None:
        """Forget what is the parent's to record."""
        self._times.clear()
        self._pending.clear()

    def _is_on(self) -> bool:
        session = self._session
        window = session.schedule.windows.get(DATALOADER)
        if window is None or window.ended or session.is_off(DATALOADER):
            return False
        tracker = session.tracker
        step = max(tracker.global_step + (not tracker.is_open), 0)
        return window.at_step(step, time.time(), time.monotonic(), tracker.batches)

    def _collect(self, phase: str, name: str, span: Span) -> None:
        if self._names.matches(name):
            args = {"worker_id": span.worker, **self._settings}
            if span.pid:
                args["pid"] = span.pid
            self._session.append((phase, name, span.start_ns, span.end_ns, -1, args))


def _defined(kind: type, name: str) -> dict[str, Any]:
    code = getattr(getattr(kind, name, None), "__code__", None)
    if code is None or is_library(code.co_filename):
        return {}
    return {"file": code.co_filename, "line": code.co_firstlineno, "function": code.co_name}


def _regex(profile: Profile) -> str:
    config = profile.collectors.get(DATALOADER)
    return "" if config is None else config.metrics_regex
