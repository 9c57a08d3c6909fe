"""The adapter for TensorFlow: patches TensorFlow so that its work reaches the tracker, and restores it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.hook.adapter import FrameworkAdapter
from sm_profiler.hook.detailed import DETAILED, SESSION, DetailedWindow, Profiler
from sm_profiler.hook.patches import Patches
from sm_profiler.hook.tensorflow.loops import Loops
from sm_profiler.hook.tensorflow.operators import OperatorCount
from sm_profiler.hook.tensorflow.pipelines import DATALOADER, LateWaits, Overlap, Stages
from sm_profiler.hook.tensorflow.stopwatch import Stopwatch

if TYPE_CHECKING:
    from sm_profiler.hook.collector import Collector
    from sm_profiler.hook.session import Session
    from sm_profiler.hook.steps import Record


OPTIONS = {"host_tracer_level": 2, "python_tracer_level": 0, "device_tracer_level": 1}


class TensorFlowProfiler(Profiler):
    """Profiles host and devices; TensorFlow writes the trace itself as it stops."""

    framework = "tensorflow"

    def __init__(self) -> None:
        self._owner: Any = import_module("tensorflow.python.profiler.profiler_v2")
        self.entry = self._owner._pywrap_profiler, SESSION  # TensorFlow's own name

    def is_busy(self) -> bool:
        """Return whether the script profiles."""
        return self._owner._profiler is not None  # TensorFlow has no public function for it

    def start(self, folder: Path) -> Any:
        """Start profiling."""
        session = getattr(*self.entry)()
        session.start(str(folder), OPTIONS)
        return session, folder

    def stop(self, session: Any) -> Callable[[Path], None]:
        """Stop profiling; return what moves the trace to its place."""
        running, folder = session
        running.export_to_tb()

        def write(path: Path) -> None:
            next(folder.glob("plugins/profile/*/*.xplane.pb")).rename(path)

        return write


TENSORFLOW = "tensorflow"
STOPWATCH = "tensorflow stopwatch"


class TensorFlowAdapter(FrameworkAdapter):
    """Wraps iterators, tapes, optimizers and functions.

    Attributes:
        stopwatch: measures fetches inside graphs.
        stages: reads the stages of pipelines.
        loops: finds the steps of loops that the script writes itself.
        retracing: records traces.
    """

    framework = TENSORFLOW
    collectors = frozenset({DATALOADER, DETAILED})

    def __init__(self, session: Session) -> None:
        self.session = session
        self._tf: Any = import_module(TENSORFLOW)
        self._patches = Patches(session.fail)
        self._detailed = DetailedWindow(session, TensorFlowProfiler())
        self.stopwatch = Stopwatch(self._tf, lambda error: session.guard.failed(STOPWATCH, error))
        self.stages = Stages(session, self._tf)
        self._overlap = Overlap()
        self._late_waits = LateWaits(lambda end_ns: self.stopwatch.batches(end_ns=end_ns))
        self.loops = Loops(session, self._tf, self.stopwatch, self.stages, lambda: session.lead(self))
        self.retracing = self.loops.retracing
        self._operators = OperatorCount(session, self._tf, self.loops, self.retracing)

    def install(self) -> None:
        """Patch TensorFlow."""
        os.register_at_fork(after_in_child=self.stopwatch.forked)
        self.session.add(self.retracing)
        self.session.add(self.stages)
        self.session.add(self._operators)
        patches, loops, stopwatch = self._patches, self.loops, self.stopwatch
        for module, kind in (
            ("tensorflow.python.data.ops.iterator_ops", "OwnedIterator"),
            ("tensorflow.python.distribute.input_lib", "DistributedIteratorBase"),
        ):
            owner = getattr(import_module(module), kind)
            for name in ("__next__", "get_next", "get_next_as_optional"):
                optional = name == "get_next_as_optional"
                patches.replace(owner, name, functools.partial(stopwatch.wrap_fetch, optional=optional))
                patches.around(owner, name, loops.fetch_begins, loops.fetch_ends)
        self.stages.install()
        loops_over_datasets = import_module("tensorflow.python.data.ops.dataset_autograph")
        patches.replace(loops_over_datasets, "_general_purpose_scan", stopwatch.wrap_scan)
        tape = self._tf.GradientTape
        patches.around(tape, "__enter__", loops.tape_enters)
        patches.around(tape, "__exit__", loops.tape_exits, loops.tape_exited)
        patches.around(tape, "gradient", loops.gradient_begins, loops.gradient_ends)
        functions = import_module("tensorflow.python.eager.polymorphic_function.polymorphic_function")
        patches.around(functions.Function, "__call__", loops.call_begins, loops.call_ends)
        tracing = import_module("tensorflow.python.eager.polymorphic_function.tracing_compilation")
        patches.replace(tracing, "_create_concrete_function", self.retracing.wrap_trace)
        patches.when_loaded("keras.src.optimizers.base_optimizer", self._optimizers_loaded)
        patches.when_loaded("keras.src.layers.layer", self._layers_loaded)

    def _optimizers_loaded(self) -> None:
        optimizers = import_module("keras.src.optimizers.base_optimizer")
        if self._is_backend():
            self._patches.around(optimizers.BaseOptimizer, "apply", self.loops.apply_begins, self.loops.apply_ends)

    def _layers_loaded(self) -> None:
        layers = import_module("keras.src.layers.layer")
        if self._is_backend():
            self._patches.around(layers.Layer, "__call__", self.loops.layer_begins, self.loops.layer_ends)

    def _is_backend(self) -> bool:
        return str(import_module("keras.src.backend.config").backend()) == TENSORFLOW

    def remove(self) -> None:
        """Restore TensorFlow."""
        self._patches.remove()
        self.stages.remove()
        self.session.discard(self.retracing)
        self.session.discard(self.stages)
        self._operators.stop()
        self.session.discard(self._operators)

    def detailed(self) -> Collector:
        """Return the collector of TensorFlow's own profiler."""
        return self._detailed

    def rank(self) -> int | None:
        """Return the rank set by the launcher, or the number of this worker in TF_CONFIG."""
        rank = super().rank()
        if rank is None and os.environ.get("TF_CONFIG"):
            with contextlib.suppress(ValueError, AttributeError, TypeError):
                task = json.loads(os.environ["TF_CONFIG"]).get("task", {})
                return int(task["index"]) if task.get("type") in {"worker", "chief"} and "index" in task else None
        return rank

    def training_thread(self) -> int | None:
        """Return the id of the thread that trains."""
        return self.loops.thread

    def step_ending(self, *, later: bool) -> None:
        """Record how long a step that another adapter marks has waited for its batches, or leave that for later."""
        loops, tracker = self.loops, self.session.tracker
        loops.leads = False
        if later and tracker.batches == 1 and not loops.fetched and not self.stages.wanted:
            tracker.waits_later = self.stopwatch.used
            return
        now = perf_counter_ns()
        eager, loops.fetched = loops.fetched, []
        inside = self.stopwatch.batches(tracker.step_start)
        waits = [*eager, *inside]
        if waits:
            for start, end in waits:
                self.stages.batch("tf.data", start, end)
            hidden = self._overlap.hidden(inside, now, tracker.mode)
            tracker.waited("tf.data", sum(end - start for start, end in waits) - hidden)

    def complete(self, records: list[Record]) -> list[Record]:
        """Return records of steps with how long they waited inside graphs."""
        return self._late_waits.complete(records)
