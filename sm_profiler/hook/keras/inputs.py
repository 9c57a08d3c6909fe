"""The input of Keras's loops: what it is, how long the loop waits for a batch, and how long a PyDataset takes for it."""

from __future__ import annotations

import functools
import os
import threading
from importlib import import_module
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.config.profile import NamePattern
from sm_profiler.formats.event_names import DATALOADER_FETCH, DATALOADER_ITER, DATALOADER_WAIT
from sm_profiler.formats.recorded import Input
from sm_profiler.hook.caller import definition
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.patches import Patches, timed
from sm_profiler.hook.pytorch.workers import FetchTimes, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sm_profiler.config import Profile
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
    """An iterable of batches whose iterators time each fetch.

    Args:
        iterable: the batches.
        time: wraps the function that fetches a batch.
    """

    def __init__(self, iterable: Any, time: Callable[[Any], Any]) -> None:
        self._iterable = iterable
        self._time = time

    def __iter__(self) -> Iterator[Any]:
        return TimedIterator(self._time(iter(self._iterable).__next__))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterable, name)


class TimedIterator:
    """Calls a function for each batch."""

    def __init__(self, fetch: Callable[[], Any]) -> None:
        self._fetch = fetch

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._fetch()


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
        self._pending: list[Input] = []
        self._seen: set[Input] = set()
        self._times: list[tuple[FetchTimes, dict[int, int]]] = []  # of enqueuers with processes, and what was read
        self._enqueuers: dict[int, FetchTimes] = {}
        self._workers: dict[int, int] = {}  # thread → its number
        self._names = NamePattern(_regex(session.profile))
        self._patches = Patches(functools.partial(session.switch_off, self))

    def install(self) -> None:
        """Patch the iterators of epochs and the datasets."""
        patches = self._patches
        iterators = import_module("keras.src.trainers.epoch_iterator")
        patches.after(iterators.EpochIterator, "__init__", self._created)
        if self._backend == "jax":
            trainer = import_module("keras.src.backend.jax.trainer")
            patches.after(trainer.JAXEpochIterator, "_get_iterator", self._watch)
        datasets = import_module(f"{ADAPTERS}.py_dataset_adapter")
        patches.after(datasets.PyDatasetAdapter, "_get_iterator", self._watch_single)
        patches.replace(datasets, "get_index", self._wrap_get_index)
        patches.around(datasets.PyDatasetEnqueuer, "start", self._starts)

    def remove(self) -> None:
        """Restore Keras, and forget the input."""
        self._patches.remove()
        self._enqueuers.clear()
        self._times.clear()

    # what the input is

    def _created(self, _none: None, iterator: Any, *_args: Any, **_kwargs: Any) -> None:
        if not self._session.quiet:
            self._describe(iterator.data_adapter)

    def _describe(self, adapter: Any) -> None:
        kind = KINDS.get(type(adapter).__name__, type(adapter).__name__)
        own: dict[str, Any] = {}
        dataset = getattr(adapter, "py_dataset", None)
        if dataset is not None:
            workers = int(dataset.workers) if getattr(adapter, "enqueuer", None) is not None else 0
            self._settings = {"num_workers": workers, "pin_memory": False}
            code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
            own = {**self._settings, "worker_id": -1, "processes": bool(dataset.use_multiprocessing), **definition(code)}
        size = getattr(adapter, "batch_size", None)
        if isinstance(size, int):
            self._session.saw_batch_size(size)
        found = Input(kind=kind, backend=self._backend, **own)
        if found not in self._seen:
            self._seen.add(found)
            self._pending.append(found)
            self._record_pending()

    def _record_pending(self) -> None:
        if self._session.is_recording:
            now = perf_counter_ns()
            while self._pending:
                found = self._pending.pop(0)
                self._session.append(found.span(found.kind, now, now))

    def start(self) -> None:
        """Record what the input is."""
        self._record_pending()

    # waits

    def _watch(self, iterable: Any, iterator: Any) -> Waits | None:
        """Return an epoch's batches with their fetches timed."""
        if self._session.quiet:
            return None
        adapter = type(iterator.data_adapter).__name__
        end = functools.partial(self._ends, KINDS.get(adapter, adapter))
        return Waits(iterable, lambda fetch: timed(fetch, self._begins, end, self._session.fail))

    def _begins(self) -> int | None:
        """Record that the loop requests a batch; return None if its wait does not count."""
        session = self._session
        tracker = session.tracker
        if session.quiet or tracker.in_fetch or threading.get_ident() != session.training_thread():
            return None
        tracker.in_fetch += 1
        return perf_counter_ns()

    def _ends(self, kind: str, start_ns: int, _batch: Any, error: BaseException | None) -> None:
        """Record that a batch arrived."""
        session, end_ns = self._session, perf_counter_ns()
        tracker = session.tracker
        tracker.in_fetch = 0
        if error is not None:
            return
        if tracker.is_open:
            tracker.waited(kind, end_ns - start_ns)
        elif session.is_recording:
            tracker.append((DATALOADER_WAIT, kind, start_ns, end_ns, tracker.number + 1, None))
        if self._is_on():
            self._collect(DATALOADER_ITER, f"{kind}::GetNext", Span(-1, 0, start_ns, end_ns))

    # fetches of PyDatasets

    def _watch_single(self, generator: Iterator[Any], adapter: Any) -> Iterator[Any] | None:
        return None if adapter.enqueuer is not None or self._session.quiet else self._each(generator)

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

    def _starts(self, enqueuer: Any) -> None:
        """Give the processes of an enqueuer memory for their times, before they are forked."""
        wanted = self._session.schedule.is_ahead(DATALOADER) and not self._session.quiet
        if wanted and enqueuer.py_dataset.use_multiprocessing and enqueuer.uid not in self._enqueuers:
            times = self._enqueuers[enqueuer.uid] = FetchTimes(PLACES)
            self._times.append((times, {}))

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
        return self._session.schedule.takes_batch(DATALOADER, self._session.tracker)

    def _collect(self, phase: str, name: str, span: Span) -> None:
        if self._names.matches(name):
            args = {"worker_id": span.worker, **self._settings}
            if span.pid:
                args["pid"] = span.pid
            self._session.append((phase, name, span.start_ns, span.end_ns, -1, args))


def _regex(profile: Profile) -> str:
    config = profile.collectors.get(DATALOADER)
    return "" if config is None else config.metrics_regex
