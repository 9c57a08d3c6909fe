"""The adapter for Keras 3: Keras's own loops mark the steps, on every backend.

Besides the steps, it times callbacks, and records the input of a loop: what it is, how long the loop waits for a batch, and
how long a PyDataset takes for it.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import os
import threading
from collections import deque
from importlib import import_module
from statistics import median_low
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.config.profile import NamePattern
from sm_profiler.formats.event_names import (
    COMPILED_STEP,
    DATALOADER_FETCH,
    DATALOADER_ITER,
    DATALOADER_WAIT,
    RESULTS,
)
from sm_profiler.formats.recorded import Epoch, Input
from sm_profiler.formats.trace_writer import Span
from sm_profiler.hook.adapter import Collector, FrameworkAdapter
from sm_profiler.hook.frames import definition
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.patches import Begin, End, Patches, Replaced, timed
from sm_profiler.hook.pytorch.workers import Fetch, FetchTimes
from sm_profiler.hook.rest import ENDLESS
from sm_profiler.hook.steps import METER_MAX_NS
from sm_profiler.hook.timed_calls import LONG_NS, CallbackTimes, CallSum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import CodeType, FrameType

    from sm_profiler.config import Profile
    from sm_profiler.hook.rest import MarkedRest
    from sm_profiler.hook.session import Session
    from sm_profiler.hook.tensorflow.adapter import Loops


# The time that each callback takes, by its class and method.


PHASE = "callback"  # of the samples taken during a callback
BATCH_METHODS = ("on_train_batch_begin", "on_train_batch_end")
CACHE = "_sm_profiler_timed"


class Proxy:
    """A callback as its list calls it, with a single method timed."""

    def __init__(self, callback: Any, name: str, timed: Any) -> None:
        self._callback = callback
        setattr(self, name, timed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._callback, name)


class TimedList(list[Any]):
    """The callbacks of a list while it calls their methods.

    Attributes:
        original: the callbacks themselves.
    """

    def __init__(self, of: list[Any], original: list[Any]) -> None:
        super().__init__(of)
        self.original = original


class Callbacks(Collector):
    """Times callbacks on the training thread.

    The list of callbacks is replaced while it calls them, so that the callbacks stay as they are.  In the steps of a rest
    it is not: there, calls take as long as in those that are timed, and what the loop takes longer between two steps
    counts as a call of its only callback.

    Attributes:
        codes: of the list's own methods that are called with each batch.
        in_rests: what is put back during a rest.
    """

    name = "callbacks"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._base: Any = None
        self._methods: dict[str, CallSum] = {}
        self._times = CallbackTimes(session.append)
        self._batches: dict[
            CallSum, list[int]
        ] = {}  # called with each batch → timed calls, and nanoseconds of the short ones
        self.in_rests: list[Replaced] = []
        self._rested: deque[tuple[list[int], list[int], int]] = deque()  # starts and ends of steps; number of the first
        self.codes: set[CodeType] = set()

    def install(self, patches: Patches, owner: Any) -> None:
        """Patch the list of callbacks."""
        self._base = import_module("keras").callbacks.Callback
        names = [name for name in vars(owner) if name.startswith("on_")]
        for name in names:
            inner = f"_{name}" if f"_{name}" in vars(owner) else name  # what a pool's thread may run
            wrapped = patches.replace(owner, inner, functools.partial(self._wrap, name))
            if name in BATCH_METHODS and wrapped is not None:
                self.in_rests.append(wrapped)

    def _wrap(self, name: str, original: Any) -> Any:
        session = self._session
        if name in BATCH_METHODS:
            self.codes.add(original.__code__)

        @functools.wraps(original)
        def method(callbacks: Any, *args: Any, **kwargs: Any) -> Any:
            cache = callbacks.__dict__.get(CACHE)
            if cache and cache.get(name, cache) is None and len(callbacks.callbacks) == cache.get("count"):
                return original(callbacks, *args, **kwargs)  # the usual case: none defines this method
            timed = None
            if not session.quiet and not session.is_off(self.name):
                try:
                    timed = self._timed(callbacks, name)
                except Exception as error:  # fail open
                    session.switch_off(self, error)
            if timed is None:
                return original(callbacks, *args, **kwargs)
            callbacks.callbacks = timed
            try:
                return original(callbacks, *args, **kwargs)
            finally:
                if callbacks.callbacks is timed:
                    callbacks.callbacks = timed.original

        return method

    def _timed(self, callbacks: Any, name: str) -> TimedList | None:
        """Return the list of callbacks with those methods timed that are worth it; None if there are none."""
        if threading.get_ident() != self._session.training_thread() or type(callbacks.callbacks) is not list:
            return None
        cache = callbacks.__dict__.setdefault(CACHE, {})
        known = cache.get(name, False)
        if known is not False and (known is None or known.original is callbacks.callbacks):
            if len(callbacks.callbacks) == cache["count"]:
                return known  # type: ignore[no-any-return]
            cache.clear()
        plain = callbacks.callbacks
        proxies = [self._proxy(callback, name) for callback in plain]
        timed = TimedList(proxies, plain) if any(a is not b for a, b in zip(plain, proxies, strict=True)) else None
        cache[name], cache["count"] = timed, len(plain)
        return timed

    def _proxy(self, callback: Any, name: str) -> Any:
        own = getattr(callback, name)
        function = inspect.unwrap(getattr(own, "__func__", own))
        if function is vars(self._base).get(name):
            inner = name.replace("_train_", "_")  # by default, the older name
            older = getattr(callback, inner, None)
            function = inspect.unwrap(getattr(older, "__func__", older)) if older is not None else None
            if inner == name or function is None or function is vars(self._base).get(inner):
                return callback
            name_of = inner
        else:
            name_of = name
        method = self._method(f"{type(callback).__name__}.{name_of}", function)
        if name in BATCH_METHODS:
            self._batches.setdefault(method, [0, 0])
        return Proxy(callback, name, self._time(own, method))

    def _method(self, name: str, function: Any) -> CallSum:
        known = self._methods.get(name)
        if known is None:
            known = self._methods[name] = self._times.callback(name, getattr(function, "__code__", None))
        return known

    def _time(self, original: Any, method: CallSum) -> Any:
        session, batches = self._session, self._batches.get(method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            declared = session.sampler.declared if session.sampler else []
            declared.append(PHASE)
            aside = session.aside if threading.get_ident() == session.training_thread() else None
            if aside is not None:
                aside.depth += 1
            start = perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                end = perf_counter_ns()
                declared.pop()
                if aside is not None:
                    aside.leave(end - start)
                self._times.ended(method, start, end, session.tracker.train_number)
                if batches is not None and end - start < LONG_NS:
                    batches[0] += 1
                    batches[1] += end - start

        return timed

    def rested(self, starts: list[int], ends: list[int], number: int) -> None:
        """Count the calls of a rest later; the last step may have no end."""
        self._rested.append((starts, ends, number))

    def in_callback(self, stack: Sequence[FrameType]) -> bool:
        """Return whether a list calls one of its callbacks with a batch."""
        return any(frame.f_code in self.codes for frame in stack[1:])

    def _count_rested(self, starts: list[int], ends: list[int], number: int) -> None:
        for method, (count, length_ns) in self._batches.items():
            if count:
                method.count += len(ends)
                method.total_ns += len(ends) * length_ns // count
        between = [after - before for before, after in zip(ends, starts[1:], strict=False)]
        if len(self._batches) != 1 or not between:
            return
        (method,), usual = self._batches, median_low(between)
        for at, length_ns in enumerate(between):
            if length_ns - usual >= LONG_NS:
                self._times.ended(method, ends[at], ends[at] + length_ns - usual, number + at)

    def beat(self) -> None:
        """Record the sums of the short calls, on the recorder's thread."""
        while self._rested:
            self._count_rested(*self._rested.popleft())
        self._times.beat(perf_counter_ns())

    def close(self) -> None:
        """Record the last sums."""
        self.beat()

    def forked(self) -> None:
        """Forget the parent's calls."""
        self._methods, self._times = {}, CallbackTimes(self._session.append)
        self._batches.clear()
        self._rested.clear()


# The input of a loop.


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
    """An iterable of batches whose iterators time each fetch: `time` wraps the function that fetches a batch."""

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
            own = {
                **self._settings,
                "worker_id": -1,
                "processes": bool(dataset.use_multiprocessing),
                **definition(code),
            }
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
            self._collect(DATALOADER_ITER, f"{kind}::GetNext", Fetch(-1, 0, start_ns, end_ns))

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
                self._collect(DATALOADER_FETCH, DATALOADER_FETCH, Fetch(self._worker(), 0, start_ns, end_ns))
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
                    times.fetched(index, Fetch(os.getpid(), os.getpid(), start, end))
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

    def _collect(self, phase: str, name: str, fetch: Fetch) -> None:
        if self._names.matches(name):
            args = {"worker_id": fetch.worker, **self._settings}
            if fetch.pid:
                args["pid"] = fetch.pid
            self._session.append((phase, name, fetch.start_ns, fetch.end_ns, -1, args))


def _regex(profile: Profile) -> str:
    config = profile.collectors.get(DATALOADER)
    return "" if config is None else config.metrics_regex


# The adapter.


KERAS = "keras"
MODES = {"train": ModeKeys.TRAIN, "test": ModeKeys.EVAL, "predict": ModeKeys.PREDICT}
AGAIN = "the script called compile() again, which discards the compiled step: call it once, before the loop"
LOOPS = ("fit", "evaluate", "predict")
_TRAIN = ModeKeys.TRAIN
RESULTS_NS = 100_000  # a shorter wait for a step's results is not worth an event
WORKER = "Keras_worker"  # start of the name of a PyDataset's worker process


class KerasAdapter(FrameworkAdapter):
    """Patches Keras's list of callbacks, and the methods of models that run steps.

    It adds no callback: on the JAX backend a callback with methods for batches moves those of all others to the main
    thread.
    """

    framework = KERAS
    collectors = frozenset({DATALOADER})

    def __init__(self, session: Session) -> None:
        self.session = session
        self._keras: Any = import_module("keras")
        self.backend: str = self._keras.backend.backend()
        self._patches = Patches(session.fail)
        self._thread: int | None = None  # that trains
        self._depth = 0  # loops that run, one inside the other
        self._batch = 0  # number of the open step's first batch in its epoch
        self._held: Span | None = None  # a step whose number of batches is not certain yet
        self._epoch: tuple[int, int] | None = None  # number and start of the running epoch
        self._model: Any = None  # whose loop runs
        self._iterations = 0  # of its optimizer, at the start of the epoch
        self._trained = 0  # batches since then
        self._ending: tuple[Callable[..., None], ...] = ()  # of the other adapters
        self._compiles = self.backend != "torch"
        self._rest: MarkedRest | None = None
        self._begins: Replaced | None = None  # the list's methods that are called with each batch of `fit`
        self._ends: Replaced | None = None
        self._results: list[Replaced] = []  # functions that wait for results
        self._waits = False  # some have waited since the last rest began
        self._hidden: list[Replaced] = []
        self._late = False  # the wait of the step before is added later: all of it runs in a graph
        self.callbacks = Callbacks(session)
        self.inputs = Inputs(session, self.backend)

    def install(self) -> None:
        """Patch Keras and add the collectors."""
        session, keras, patches = self.session, self._keras, self._patches
        session.add(self.callbacks)
        session.add(self.inputs)
        owner = keras.callbacks.CallbackList
        patches.around(owner, "on_epoch_begin", self._epoch_begins)
        patches.around(owner, "on_epoch_end", self._epoch_ending, self._epoch_ends)
        self.callbacks.install(patches, owner)  # first, so that a step's wrapper lies around it
        for name, mode in MODES.items():
            begins = patches.replace(owner, f"on_{name}_batch_begin", functools.partial(self._wrap_begin, mode))
            ends = patches.replace(owner, f"on_{name}_batch_end", functools.partial(self._wrap_end, mode))
            if mode is _TRAIN and begins is not None:
                self._begins, self._ends = begins, ends
            self._around(keras.Model, f"{name}_on_batch", functools.partial(self._enter_batch, mode), self._leave_batch)
        for name in LOOPS:
            self._around(keras.Model, name, self._enter, self._leave)
        self.inputs.install()
        self._install_backend()

    def _install_backend(self) -> None:
        """Patch what only some backends have."""
        keras = self._keras
        if self.backend == "tensorflow":
            self._around(keras.Model, "compile", self._compiles_again, self._compiled_again)
        results: list[tuple[Any, str]] = []  # functions that wait for a step's results
        if self.backend == "jax":  # reads the metrics at the end of an epoch
            trainer = import_module("keras.src.trainers.trainer").Trainer
            results.append((trainer, "_get_metrics_result_or_logs"))
            results.append((import_module("keras.src.backend.jax.trainer"), "pythonify_logs"))
        if self._compiles:  # the values of metrics are those of steps that may still run
            results.append((import_module("keras.src.utils.python_utils"), "pythonify_logs"))
            results.append(
                (keras.callbacks.CallbackList, "_flush_futures")
            )  # of callbacks in a pool, which read these values
        for owner, name in results:
            replaced = self._patches.replace(owner, name, self._wrap_results)
            if replaced is not None:
                self._results.append(replaced)
        if self.backend == "torch":
            forwards = getattr(self.session.find("pytorch"), "forwards", None)
            if forwards is not None:  # a model under construction calls its layers to see shapes
                forwards.symbolic = keras.KerasTensor
                scope = import_module("keras.src.backend.common.symbolic_scope")
                forwards.constructing = getattr(scope, "in_symbolic_scope", None)
            definer = _definer(keras.optimizers.Optimizer, "apply")
            if definer is not None:
                self._patches.replace(definer, "apply", self._wrap_apply)

    def _around(self, kind: type, name: str, begin: Begin, end: End) -> None:
        """Patch a method that a class may have inherited."""
        definer = _definer(kind, name)
        if definer is not None:
            self._patches.around(definer, name, begin, end)

    def remove(self) -> None:
        """Restore Keras and take the collectors out."""
        self.session.tracker.end_rest()
        self._patches.remove()
        self.inputs.remove()
        self.session.tracker.release(KERAS)
        self.session.discard(self.callbacks)
        self.session.discard(self.inputs)

    def detailed(self) -> Collector | None:
        """Return the backend's collector."""
        backend = self.session.find({"torch": "pytorch"}.get(self.backend, self.backend))
        return None if backend is None else backend.detailed()

    def training_thread(self) -> int | None:
        """Return the id of the thread that runs the loop."""
        return self._thread or super().training_thread()

    def is_helper(self) -> bool:
        """Return whether this process is a worker of a PyDataset."""
        return multiprocessing.current_process().name.startswith(WORKER)

    def _compiles_again(self, model: Any, *_args: Any, **_kwargs: Any) -> bool | None:
        had = not self.session.quiet and getattr(model, "train_function", None) is not None
        return had or None

    def _compiled_again(self, _had: bool, _result: Any, error: BaseException | None) -> None:
        """Explain the trace that follows: the model had a compiled step already and gets another."""
        retracing = getattr(self.session.find("tensorflow"), "retracing", None)
        if retracing is not None and error is None and not self.session.quiet:
            retracing.anew = AGAIN

    # loops

    def _enter(self, model: Any, *_args: Any, **_kwargs: Any) -> bool | None:
        """Claim the steps; return True if Keras owns them now."""
        session = self.session
        if session.quiet or (self._depth and get_ident() != self._thread):
            return None
        self._interrupt_rest()
        if not self._depth:
            if not session.tracker.claim(KERAS):
                return None
            session.lead(self)
            self._thread = get_ident()
            self._model = model
            default = FrameworkAdapter.step_ending
            self._ending = tuple(
                adapter.step_ending for adapter in session.adapters if type(adapter).step_ending is not default
            )
        self._depth += 1
        return True

    def _leave(self, *_outcome: Any) -> None:
        self._depth -= 1
        self.session.tracker.cancel_step()  # it raised an error, or found no batch
        if self._depth == 0:
            self._settle()
            if self._loops is not None:
                self._loops.step_ended(perf_counter_ns())
            self._epoch = self._model = None
            self.session.tracker.release(KERAS)

    def _enter_batch(self, mode: ModeKeys, model: Any, *_args: Any, **_kwargs: Any) -> bool | None:
        if self._depth or not self._enter(model):
            return None
        self._begin(mode, None, 0)
        return True

    def _leave_batch(self, *_outcome: Any) -> None:
        end_ns = perf_counter_ns()
        if not self.session.quiet and self.session.tracker.owner == KERAS:
            self._finish(end_ns)
        self._leave()

    # steps

    def _owns(self) -> bool:
        session = self.session
        return not session.quiet and session.tracker.owner == KERAS and get_ident() == self._thread

    def _wrap_results(self, original: Any) -> Any:  # written out: it runs three times a step, and every call costs time
        """Count waiting for results as part of the steps before it: they run behind the loop until their values are read.

        Keras reads them for the callbacks of each batch, or, if no callback looks at batches, at the end of an epoch.
        """
        session, tracker = self.session, self.session.tracker

        @functools.wraps(original)
        def waits(*args: Any, **kwargs: Any) -> Any:
            if len(args) == 1 and args[0] is None:  # a batch begins without results
                return original(*args, **kwargs)
            if session.quiet or tracker.owner != KERAS or get_ident() != self._thread:  # as _owns(): a call costs time
                return original(*args, **kwargs)
            tracker.in_compiled, start_ns = True, perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                tracker.in_compiled, end_ns = False, perf_counter_ns()
                if tracker.number >= 0 and end_ns - start_ns > RESULTS_NS and not session.quiet:
                    self._waits = True
                    try:
                        tracker.append((RESULTS, "metrics", start_ns, end_ns, tracker.latest_number, None))
                    except Exception as error:  # fail open
                        session.fail(error)

        return waits

    def _wrap_begin(self, mode: ModeKeys, original: Any) -> Any:
        fail = self.session.fail

        @functools.wraps(original)
        def on_batch_begin(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                self._begin(mode, *args, **kwargs)
            except Exception as problem:  # fail open
                fail(problem)
            return result

        return on_batch_begin

    def _wrap_end(self, mode: ModeKeys, original: Any) -> Any:
        fail = self.session.fail

        @functools.wraps(original)
        def on_batch_end(*args: Any, **kwargs: Any) -> Any:
            try:
                self._end(mode, *args, **kwargs)
            except Exception as problem:  # fail open
                fail(problem)
            return original(*args, **kwargs)

        return on_batch_end

    def _rests(self, mode: ModeKeys, start_ns: int, callbacks: Any) -> bool:
        """Return whether a rest begins, and with it the step.

        All that runs in its steps is one wrapper: after the callbacks of a batch, the next step begins.
        """
        begins, ends = self._begins, self._ends
        if mode is not _TRAIN or not self._late or self._batches_a_run() != 1 or begins is None or ends is None:
            return False
        self._rest = rest = self.session.tracker.begin_marked_rest(start_ns, self._awake, self._phase_of)
        if rest is None:
            return False
        calls, slow_ns = self._loops.rest_begins() if self._loops is not None else ([], ENDLESS)
        results = () if self._waits else self._results
        self._waits = False
        self._hidden = [begins, *self.callbacks.in_rests, *results, *calls]  # a wrapper around another one before it
        light = self._light(rest, callbacks, ends.original, slow_ns)
        self._hidden.append(ends._replace(original=light))
        for replaced in self._hidden:
            replaced.hide()
        return True

    def _light(self, rest: MarkedRest, own: Any, original: Any, slow_ns: int) -> Any:
        """Return the list's method that is called at the end of a batch, as it is during a rest."""
        starts, ends, steps, until = rest.ends, rest.finished, rest.steps, rest.until

        @functools.wraps(original)
        def on_batch_end(callbacks: Any, *args: Any, **kwargs: Any) -> Any:
            if callbacks is not own:  # of a loop on another thread
                return original(callbacks, *args, **kwargs)
            ends.append(end_ns := perf_counter_ns())
            result = original(callbacks, *args, **kwargs)
            if end_ns - starts[-1] >= slow_ns and self._loops is not None:
                self._loops.ran_unseen(starts[-1], end_ns)
            now_ns = perf_counter_ns()
            if len(ends) < steps and now_ns < until:
                starts.append(now_ns)
            else:
                self._end_rest()
            return result

        return on_batch_end

    def _end_rest(self) -> None:
        try:
            self.session.tracker.end_rest()
        except Exception as error:  # fail open
            self.session.fail(error)

    def _interrupt_rest(self) -> None:
        """End the rest between two steps, the second of which does not follow at once."""
        if self._rest is not None:
            self.session.tracker.cancel_step()

    def _awake(self) -> None:
        rest, self._rest = self._rest, None
        for replaced in reversed(self._hidden):
            replaced.show()
        self._hidden = []
        if rest is not None:
            self.callbacks.rested(rest.ends, rest.finished, self.session.tracker.number + 1 - len(rest.ends))

    @functools.cached_property
    def _loops(self) -> Loops | None:
        """The loops of TensorFlow's adapter, on that backend."""
        return getattr(self.session.find("tensorflow"), "loops", None) if self.backend == "tensorflow" else None

    def _phase_of(self, stack: Sequence[FrameType]) -> str:
        if self.session.tracker.in_compiled:
            return "compiled"
        return PHASE if self.callbacks.in_callback(stack) else ""

    def _begin(self, mode: ModeKeys, callbacks: Any, batch: int, *_args: Any, **_kwargs: Any) -> None:
        session, tracker = self.session, self.session.tracker
        if session.quiet or tracker.owner != KERAS or get_ident() != self._thread:  # as _owns(): a call costs time
            return
        start_ns = perf_counter_ns()
        tracker.end_rest()
        if tracker.is_open:
            tracker.cancel_step()  # the last of an epoch of unknown length, which found no batch
        self._batch = batch
        if callbacks is not None and self._rests(mode, start_ns, callbacks):
            return
        batches = self._batches_a_run()
        tracker.begin_step(start_ns, gradients=mode is ModeKeys.TRAIN, mode=mode, batches=batches)
        tracker.consume(batches)
        if tracker.metering:
            tracker.own_ns += min(perf_counter_ns() - start_ns, METER_MAX_NS)

    def _end(self, mode: ModeKeys, callbacks: Any, batch: int, *_args: Any, **_kwargs: Any) -> None:
        end_ns = perf_counter_ns()
        session, tracker = self.session, self.session.tracker
        if session.quiet or tracker.owner != KERAS or get_ident() != self._thread:
            return
        if tracker.batches == 1:
            self._trained += mode is ModeKeys.TRAIN
            self._finish(end_ns)
            return
        limit = (getattr(callbacks, "params", None) or {}).get("steps") if mode is ModeKeys.TRAIN else None
        count = batch - self._batch + 1 if batch > self._batch else tracker.batches  # until 3.10, its end is its start
        if isinstance(limit, int):
            count = min(count, limit - self._batch)
        tracker.recount(max(count, 1))
        if mode is ModeKeys.TRAIN:
            self._settle()
            self._trained += tracker.batches
            self._held = self._finish(end_ns, hold=True)  # the last run of an epoch may have had fewer
        else:
            self._finish(end_ns)

    def _settle(self, missing: int = 0) -> None:
        """Record a step that was held back, without the batches that it turned out not to have had."""
        held, self._held = self._held, None
        if held is not None:
            args = {"batches": (held[5] or {}).get("batches", 1) - missing}
            self.session.tracker.append((*held[:5], args))

    def _finish(self, end_ns: int, *, hold: bool = False) -> Span | None:
        """End the open step; if `hold` is set, return its record instead of recording it."""
        tracker = self.session.tracker
        if not tracker.is_open:
            return None
        for ending in self._ending:
            ending(later=not hold)
        self._late = tracker.waits_later and self.backend == "tensorflow"
        held = tracker.hold_step(end_ns) if hold else None
        tracker.end_step(end_ns)
        if tracker.mode is ModeKeys.TRAIN and tracker.keep_phases and self._compiles and not tracker.saw_phases:
            tracker.append((COMPILED_STEP, "train_function", tracker.step_start, end_ns, tracker.number, None))
        if tracker.metering:
            tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MAX_NS)
        return held

    # epochs

    def _epoch_begins(self, _callbacks: Any, epoch: int, *_args: Any, **_kwargs: Any) -> None:
        if self.session.quiet:
            return
        self._epoch = int(epoch), perf_counter_ns()
        self._trained = 0
        if self._batches_a_run() > 1:
            self._iterations = self._count()

    def _epoch_ending(self, *_args: Any, **_kwargs: Any) -> bool:
        if get_ident() == self._thread:
            self._interrupt_rest()
        return True

    def _epoch_ends(self, *_outcome: Any) -> None:
        if self.session.quiet:
            return
        if self._held is not None:
            self._correct()
        if self._epoch is not None:
            number, start_ns = self._epoch
            self._epoch = None
            step = self.session.tracker.train_number
            self.session.append(Epoch(epoch=number).span(f"epoch {number}", start_ns, perf_counter_ns(), step))

    def _correct(self) -> None:
        """Record the last run of an epoch with the batches that it had: the optimizer counted them."""
        tracker = self.session.tracker
        tracker.cancel_step()
        missing = self._trained - (self._count() - self._iterations)
        batches = ((self._held and self._held[5]) or {}).get("batches", 1)
        if not 0 < missing < batches:
            missing = 0
        tracker.counts[ModeKeys.TRAIN] -= missing
        self._settle(missing)

    def _batches_a_run(self) -> int:
        return max(int(getattr(self._model, "steps_per_execution", 1) or 1), 1)

    def _count(self) -> int:
        optimizer = getattr(self._model, "optimizer", None)
        if optimizer is None:
            return 0
        value = optimizer.iterations.value  # a variable of several replicas is no number
        return int(value.numpy() if self.backend == "tensorflow" else value)

    # optimizer, on the torch backend

    def _wrap_apply(self, original: Any) -> Any:
        is_compiling: Callable[[], bool] = import_module("torch").compiler.is_compiling
        observed = timed(original, self._apply_begins, self._apply_ends, self.session.fail)

        @functools.wraps(original)
        def apply(*args: Any, **kwargs: Any) -> Any:  # torch.compile follows the original only
            return original(*args, **kwargs) if is_compiling() else observed(*args, **kwargs)

        return apply

    def _apply_begins(self, optimizer: Any, *_args: Any, **_kwargs: Any) -> Any:
        session, tracker = self.session, self.session.tracker
        if session.quiet or tracker.in_backward or (self._depth and not self._owns()):
            return None
        tracker.optimizer_begins(id(optimizer), perf_counter_ns(), type(optimizer).__name__)
        return optimizer

    def _apply_ends(self, optimizer: Any, _result: Any, _error: BaseException | None) -> None:
        if not self.session.quiet:
            self.session.tracker.optimizer_ends(id(optimizer), type(optimizer).__name__, perf_counter_ns())


def _definer(kind: type, name: str) -> type | None:
    """Return the class that defines a method of `kind`, or None."""
    return next((base for base in kind.__mro__ if name in vars(base)), None)
