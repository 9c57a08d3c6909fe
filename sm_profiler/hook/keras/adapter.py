"""The adapter for Keras 3: Keras's own loops mark the steps, on every backend."""

from __future__ import annotations

import functools
import multiprocessing
from importlib import import_module
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.formats.event_names import COMPILED_STEP, EPOCH, RESULTS
from sm_profiler.hook.adapter import FrameworkAdapter
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.keras.callbacks import Callbacks
from sm_profiler.hook.keras.inputs import DATALOADER, Inputs
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.patches import Patches
from sm_profiler.hook.steps import METER_MAX_NS, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm_profiler.hook.session import Session

KERAS = "keras"
MODES = {"train": ModeKeys.TRAIN, "test": ModeKeys.EVAL, "predict": ModeKeys.PREDICT}
AGAIN = "the script called compile() again, which discards the compiled step: call it once, before the loop"
LOOPS = ("fit", "evaluate", "predict")
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
        self._held: Record | None = None  # a step whose number of batches is not certain yet
        self._epoch: tuple[int, int] | None = None  # number and start of the running epoch
        self._model: Any = None  # whose loop runs
        self._iterations = 0  # of its optimizer, at the start of the epoch
        self._trained = 0  # batches since then
        self._ending: tuple[Callable[..., None], ...] = ()  # of the other adapters
        self._compiles = self.backend != "torch"
        self.callbacks = Callbacks(session)
        self.inputs = Inputs(session, self.backend)

    def install(self) -> None:
        """Patch Keras and add the collectors."""
        session, keras = self.session, self._keras
        session.add(self.callbacks)
        session.add(self.inputs)
        owner = keras.callbacks.CallbackList
        self._patches.replace(owner, "on_epoch_begin", self._wrap_epoch_begin)
        self._patches.replace(owner, "on_epoch_end", self._wrap_epoch_end)
        self.callbacks.install(self._patches, owner)  # first, so that a step's wrapper lies around it
        for name, mode in MODES.items():
            self._patches.replace(owner, f"on_{name}_batch_begin", functools.partial(self._wrap_batch_begin, mode))
            self._patches.replace(owner, f"on_{name}_batch_end", functools.partial(self._wrap_batch_end, mode))
            definer = _definer(keras.Model, f"{name}_on_batch")
            if definer is not None:
                self._patches.replace(definer, f"{name}_on_batch", functools.partial(self._wrap_on_batch, mode))
        for name in LOOPS:
            definer = _definer(keras.Model, name)
            if definer is not None:
                self._patches.replace(definer, name, self._wrap_loop)
        self.inputs.install(self._patches)
        self._install_backend()

    def _install_backend(self) -> None:
        """Patch what only one backend has."""
        owner, keras = self._keras.callbacks.CallbackList, self._keras
        definer = _definer(keras.Model, "compile")
        if definer is not None and self.backend == "tensorflow":
            self._patches.replace(definer, "compile", self._wrap_compile)
        if self.backend == "jax":  # reads the metrics at the end of an epoch
            trainer = import_module("keras.src.trainers.trainer").Trainer
            self._patches.replace(trainer, "_get_metrics_result_or_logs", self._wrap_results)
            self._patches.replace(import_module("keras.src.backend.jax.trainer"), "pythonify_logs", self._wrap_results)
        if self._compiles:  # the values of metrics are those of steps that may still run
            self._patches.replace(import_module("keras.src.utils.python_utils"), "pythonify_logs", self._wrap_results)
            if hasattr(owner, "_flush_futures"):  # callbacks in a pool, which read these values
                self._patches.replace(owner, "_flush_futures", self._wrap_results)
        if self.backend == "torch":
            forwards = getattr(self.session.find("pytorch"), "forwards", None)
            if forwards is not None:  # a model under construction calls its layers to see shapes
                forwards.symbolic = keras.KerasTensor
                scope = import_module("keras.src.backend.common.symbolic_scope")
                forwards.constructing = getattr(scope, "in_symbolic_scope", None)
            optimizer = keras.optimizers.Optimizer
            definer = _definer(optimizer, "apply")
            if definer is not None:
                self._patches.replace(definer, "apply", self._wrap_apply)

    def remove(self) -> None:
        """Restore Keras and take the collectors out."""
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

    def _wrap_compile(self, original: Any) -> Any:
        """Note that a model which has a compiled step already gets another."""

        @functools.wraps(original)
        def compile(model: Any, *args: Any, **kwargs: Any) -> Any:  # replaces a method of this name
            had = not self.session.quiet and getattr(model, "train_function", None) is not None
            result = original(model, *args, **kwargs)
            if had:
                self._guarded(self._compiled_again)
            return result

        return compile

    def _compiled_again(self) -> None:
        retracing = getattr(self.session.find("tensorflow"), "retracing", None)
        if retracing is not None:
            retracing.anew = AGAIN

    # loops

    def _enter(self, model: Any) -> bool:
        """Take the steps; return whether Keras owns them now."""
        session = self.session
        if session.quiet:
            return False
        try:
            if self._depth and get_ident() != self._thread:
                return False
            if not self._depth:
                if not session.tracker.claim(KERAS):
                    return False
                session.lead(self)
                self._thread = get_ident()
                self._model = model
                adapters = [
                    one for one in session.adapters if type(one).step_ending is not FrameworkAdapter.step_ending
                ]
                self._ending = tuple(one.step_ending for one in adapters)
            self._depth += 1
        except Exception as error:  # fail open
            session.fail(error)
            return False
        return True

    def _leave(self) -> None:
        try:
            self._depth -= 1
            self.session.tracker.cancel_step()  # it raised an error, or found no batch
            if self._depth == 0:
                self._settle()
                self._epoch = self._model = None
                self.session.tracker.release(KERAS)
        except Exception as error:  # fail open
            self.session.fail(error)

    def _wrap_loop(self, original: Any) -> Any:
        @functools.wraps(original)
        def loop(model: Any, *args: Any, **kwargs: Any) -> Any:
            entered = self._enter(model)
            try:
                return original(model, *args, **kwargs)
            finally:
                if entered:
                    self._leave()

        return loop

    def _wrap_on_batch(self, mode: ModeKeys, original: Any) -> Any:
        session, tracker = self.session, self.session.tracker

        @functools.wraps(original)
        def on_batch(model: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth or not self._enter(model):
                return original(model, *args, **kwargs)
            self._guarded(self._begin, mode, 0)
            try:
                return original(model, *args, **kwargs)
            finally:
                end_ns = perf_counter_ns()
                if not session.quiet and tracker.owner == KERAS:
                    self._guarded(self._finish, end_ns)
                self._leave()

        return on_batch

    def _guarded(self, action: Callable[..., object], *args: Any) -> None:
        if not self.session.quiet:
            try:
                action(*args)
            except Exception as error:  # fail open
                self.session.fail(error)

    # steps

    def _owns(self) -> bool:
        session = self.session
        return not session.quiet and session.tracker.owner == KERAS and get_ident() == self._thread

    def _wrap_batch_begin(self, mode: ModeKeys, original: Any) -> Any:
        session, owns, begin = self.session, self._owns, self._begin

        @functools.wraps(original)
        def on_batch_begin(callbacks: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(callbacks, batch, *args, **kwargs)
            if owns():
                try:
                    begin(mode, batch)
                except Exception as error:  # fail open
                    session.fail(error)
            return result

        return on_batch_begin

    def _wrap_batch_end(self, mode: ModeKeys, original: Any) -> Any:
        session, owns, end = self.session, self._owns, self._end

        @functools.wraps(original)
        def on_batch_end(callbacks: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            end_ns = perf_counter_ns()
            if owns():
                try:
                    end(mode, batch, end_ns, callbacks)
                except Exception as error:  # fail open
                    session.fail(error)
            return original(callbacks, batch, *args, **kwargs)

        return on_batch_end

    def _wrap_results(self, original: Any) -> Any:
        """Count waiting for results as part of the steps before it: they run behind the loop until their values are read.

        Keras reads them for the callbacks of each batch, or, if no callback looks at batches, at the end of an epoch.
        """
        tracker, owns = self.session.tracker, self._owns

        @functools.wraps(original)
        def waits(*args: Any, **kwargs: Any) -> Any:
            if (len(args) == 1 and args[0] is None) or not owns():  # a batch begins without results
                return original(*args, **kwargs)
            tracker.in_compiled, start_ns = True, perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                tracker.in_compiled, end_ns = False, perf_counter_ns()
                if tracker.number >= 0 and end_ns - start_ns > RESULTS_NS:
                    self._guarded(tracker.append, (RESULTS, "metrics", start_ns, end_ns, tracker.number, None))

        return waits

    def _begin(self, mode: ModeKeys, batch: int) -> None:
        tracker = self.session.tracker
        start_ns = perf_counter_ns()
        if tracker.is_open:
            tracker.cancel_step()  # the last of an epoch of unknown length, which found no batch
        self._batch = batch
        batches = self._batches_a_run()
        tracker.begin_step(start_ns, gradients=mode is ModeKeys.TRAIN, mode=mode, batches=batches)
        tracker.consume(batches)
        if tracker.metering:
            tracker.own_ns += min(perf_counter_ns() - start_ns, METER_MAX_NS)

    def _end(self, mode: ModeKeys, batch: int, end_ns: int, callbacks: Any) -> None:
        tracker = self.session.tracker
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

    def _finish(self, end_ns: int, *, hold: bool = False) -> Record | None:
        """End the open step; if `hold` is set, return its record instead of recording it."""
        tracker = self.session.tracker
        if not tracker.is_open:
            return None
        for ending in self._ending:
            ending(later=not hold)
        held = tracker.hold_step(end_ns) if hold else None
        tracker.end_step(end_ns)
        if tracker.mode is ModeKeys.TRAIN and tracker.keep_phases and self._compiles and not tracker.saw_phases:
            tracker.append((COMPILED_STEP, "train_function", tracker.step_start, end_ns, tracker.number, None))
        if tracker.metering:
            tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MAX_NS)
        return held

    # epochs

    def _wrap_epoch_begin(self, original: Any) -> Any:
        @functools.wraps(original)
        def on_epoch_begin(callbacks: Any, epoch: Any, *args: Any, **kwargs: Any) -> Any:
            self._guarded(self._epoch_begins, epoch)
            return original(callbacks, epoch, *args, **kwargs)

        return on_epoch_begin

    def _wrap_epoch_end(self, original: Any) -> Any:
        @functools.wraps(original)
        def on_epoch_end(callbacks: Any, epoch: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(callbacks, epoch, *args, **kwargs)
            finally:
                self._guarded(self._epoch_ends)

        return on_epoch_end

    def _epoch_begins(self, epoch: int) -> None:
        self._epoch = int(epoch), perf_counter_ns()
        self._trained = 0
        if self._batches_a_run() > 1:
            self._iterations = self._count()

    def _epoch_ends(self) -> None:
        if self._held is not None:
            self._correct()
        if self._epoch is not None:
            number, start_ns = self._epoch
            self._epoch = None
            record = (
                EPOCH,
                f"epoch {number}",
                start_ns,
                perf_counter_ns(),
                self.session.tracker.train_number,
                {"epoch": number},
            )
            self.session.append(record)

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
        value = optimizer.iterations.value
        return int(
            value.numpy() if self.backend == "tensorflow" else value
        )  # a variable of several replicas is no number

    # optimizer, on the torch backend

    def _wrap_apply(self, original: Any) -> Any:
        session, tracker = self.session, self.session.tracker
        is_compiling: Callable[[], bool] = import_module("torch").compiler.is_compiling

        @functools.wraps(original)
        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or session.quiet or tracker.in_backward or (self._depth and not self._owns()):
                return original(optimizer, *args, **kwargs)
            key = id(optimizer)
            self._guarded(tracker.optimizer_begins, key, perf_counter_ns(), type(optimizer).__name__)
            try:
                return original(optimizer, *args, **kwargs)
            finally:
                self._guarded(tracker.optimizer_ends, key, type(optimizer).__name__, perf_counter_ns())

        return apply


def _definer(kind: type, name: str) -> type | None:
    """Return the class that defines a method of `kind`, or None."""
    return next((one for one in kind.__mro__ if name in vars(one)), None)
