"""The adapter for TensorFlow: patches TensorFlow so that its work reaches the tracker, and restores it.

What a loop of the script calls in Python (fetches, tapes, optimizers, `tf.function`) is seen as it happens.  Of a function
that was traced, only its call is seen; the stopwatch inside it reports which batches it fetched.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import statistics
import sys
import threading
import weakref
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from threading import get_ident
from time import perf_counter_ns
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from sm_profiler.formats.recorded import Compile, Operators
from sm_profiler.hook.adapter import Collector, FrameworkAdapter
from sm_profiler.hook.detailed import DETAILED, SESSION, DetailedWindow, Profiler
from sm_profiler.hook.frames import MAX_DEPTH, user_line
from sm_profiler.hook.guard import run_bounded
from sm_profiler.hook.host_callbacks import HostCallbacks
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.patches import Patches, Replaced, timed
from sm_profiler.hook.rest import ENDLESS, MarkedRest
from sm_profiler.hook.scheduling import waited_ns
from sm_profiler.hook.steps import METER_MAX_NS, SCRIPT, Stream
from sm_profiler.hook.tensorflow.compilations import INSIDE, NODES, SLOWER, XLA, InGraphs, Retracing, another
from sm_profiler.hook.tensorflow.pipelines import DATALOADER, LateWaits, Overlap, Stages
from sm_profiler.hook.tensorflow.stopwatch import Stopwatch

if TYPE_CHECKING:
    from sm_profiler.formats.trace_writer import Span
    from sm_profiler.hook.session import Session
    from sm_profiler.hook.tensorflow.stopwatch import Times

TENSORFLOW = "tensorflow"
STREAM = "_sm_profiler_stream"
TRAINS = "_sm_profiler_trains"  # of a function: whether gradients are computed in it; absent until it was traced
QUICKEST = "_sm_profiler_quickest"  # of a function: nanoseconds of its quickest call without a trace
SERIAL = "_sm_profiler_serial"  # of a function: its number; that of its id may become another function's
TAPE, LAYER = 1, 2  # keys of forwards
FEW_BATCHES = 10_000  # that Keras's loops fetched eagerly and did not ask for


class _Call(NamedTuple):
    """A call of a `tf.function`.

    Attributes:
        function: the function.
        arguments: positional and by name.
        start_ns: its start.
        began: the tracker was notified of the start, since the function was traced before.
        outermost: no other function, fetch or backward runs around it.
        is_marked: another adapter marks the step around it.
    """

    function: Any
    arguments: tuple[Any, Any]
    start_ns: int
    began: bool
    outermost: bool
    is_marked: bool


class Loops:
    """Observes what loops call.

    Attributes:
        thread: id of the training thread.
        leads: the session has been notified that this framework trains.
        fetched: waits for batches that were fetched eagerly inside a step that another adapter marks.
        retracing: records the traces of functions.
        ran: outermost functions that ran, while they are counted; else None.
        wrappers: around the calls of functions.
    """

    def __init__(
        self, session: Session, tensorflow: Any, stopwatch: Stopwatch, stages: Stages, lead: Callable[[], None]
    ) -> None:
        self._session = session
        self._lead = lead
        self.leads = False
        self._eager: Callable[[], bool] = tensorflow.executing_eagerly
        self._exhausted = (StopIteration, tensorflow.errors.OutOfRangeError)
        self._stopwatch = stopwatch
        self._stages = stages
        self.retracing = Retracing(session.append, lambda: session.tracker.latest_number)
        self.retracing.is_called = lambda: bool(self._calls) and get_ident() == self.thread
        self.thread = threading.main_thread().ident
        self.fetched: list[tuple[int, int]] = []
        self._in_graphs = InGraphs(tensorflow, stopwatch)
        self._calls: list[Any] = []  # functions that run or are traced, the outermost first
        self._serials = itertools.count()
        self.ran: list[Any] | None = None
        self.wrappers: list[Replaced] = []
        self._latest: Any = None  # the function of steps that another adapter marks
        self._unseen_ns = 0  # start of a call of it that was not reported, and is traced
        self.retracing.begins = self._trace_begins
        self._tape: Any = None  # outermost tape that records
        self._forward = False  # of that tape

    # fetches

    def fetch_begins(self, iterator: Any, *_args: Any, **_kwargs: Any) -> tuple[Stream, int] | None:
        """Time a method that fetches a batch, if it runs eagerly on the training thread."""
        tracker = self._session.tracker
        if self._session.quiet or tracker.in_fetch or get_ident() != self.thread or not self._eager():
            return None
        stream = iterator.__dict__.get(STREAM)
        if stream is None:
            stream = iterator.__dict__[STREAM] = Stream(type(iterator).__name__, weakref.ref(iterator))
        tracker.fetch_begins()
        return stream, perf_counter_ns()

    def fetch_ends(self, begun: tuple[Stream, int], _batch: Any, error: BaseException | None) -> None:
        """Record the fetch."""
        end_ns, tracker = perf_counter_ns(), self._session.tracker
        failed = error is not None and not isinstance(error, self._exhausted)
        self._fetched(*begun, end_ns, got=error is None, failed=failed)
        if tracker.metering:
            tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MAX_NS)

    def _fetched(self, stream: Stream, start_ns: int, end_ns: int, *, got: bool, failed: bool) -> None:
        tracker = self._session.tracker
        if failed:
            tracker.fetch_failed()
        elif tracker.owner not in ("", SCRIPT):  # the owner records the waits, as part of its steps
            tracker.in_fetch -= 1
            if got and len(self.fetched) < FEW_BATCHES:
                self.fetched.append((start_ns, end_ns))
        else:
            tracker.fetch_ends(stream, start_ns, end_ns, got=got, gradients=True)
            if got:
                self._stages.batch(stream.name, start_ns, end_ns)
            else:
                self._stages.iterator_ended(stream.reader())

    # tapes, layers and optimizers

    def _is_loop(self) -> bool:
        """Return whether a call is a part of a loop that the script writes itself, and not of a traced function."""
        session = self._session
        if session.quiet or session.tracker.manual or get_ident() != self.thread or not self._eager():
            return False
        if not self.leads:
            self.leads = True
            self._lead()
        return True

    def tape_enters(self, tape: Any) -> None:
        """Begin the forward with `GradientTape.__enter__`."""
        tracker = self._session.tracker
        if self._tape is None and not tracker.in_backward and self._is_loop():
            start_ns = perf_counter_ns()
            self._tape, self._forward = tape, True
            tracker.forward_begins(TAPE, start_ns, gradients=True)
            if tracker.metering:
                tracker.own_ns += min(perf_counter_ns() - start_ns, METER_MAX_NS)

    def tape_exits(self, tape: Any, *_args: Any) -> bool | None:
        """Return whether the outermost tape exits, with which the forward ends."""
        return tape is self._tape or None

    def tape_exited(self, *_outcome: Any) -> None:
        """End the forward, unless it has ended."""
        self._tape = None
        self._forward_ends()

    def _forward_ends(self) -> None:
        if self._forward:
            self._forward = False
            self._session.tracker.forward_ends("GradientTape", perf_counter_ns())

    def gradient_begins(self, tape: Any, *_args: Any, **_kwargs: Any) -> bool | None:
        """Begin the backward with `GradientTape.gradient`."""
        inside = self._tape is not None and tape is not self._tape  # a gradient that the loss contains
        if inside or not self._is_loop():
            self._trains()
            return None
        self._forward_ends()  # called inside the tape's block
        self._session.tracker.backward_begins(perf_counter_ns())
        return True

    def gradient_ends(self, *_outcome: Any) -> None:
        """End the backward."""
        end_ns, tracker = perf_counter_ns(), self._session.tracker
        tracker.backward_ends(end_ns)
        if tracker.metering:
            tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MAX_NS)

    def apply_begins(self, optimizer: Any, /, *_args: Any, **_kwargs: Any) -> Any:
        """Begin the optimizer's step with `Optimizer.apply`."""
        if not self._is_loop():
            self._trains()
            return None
        tracker = self._session.tracker
        tracker.has_optimizer = True
        tracker.optimizer_begins(id(optimizer), perf_counter_ns(), type(optimizer).__name__)
        return optimizer

    def apply_ends(self, optimizer: Any, *_outcome: Any) -> None:
        """End the optimizer's step."""
        self._session.tracker.optimizer_ends(id(optimizer), type(optimizer).__name__, perf_counter_ns())

    def layer_begins(self, layer: Any, /, *_args: Any, **_kwargs: Any) -> Any:
        """Begin an evaluation with the call of a Keras layer outside of any tape, if a batch has arrived."""
        tracker = self._session.tracker
        if (
            tracker.batch_waits
            and self._tape is None
            and not tracker.forward_key
            and self._is_loop()
            and not self._calls
        ):
            tracker.forward_begins(LAYER, perf_counter_ns(), gradients=False)
            return layer
        return None

    def layer_ends(self, layer: Any, *_outcome: Any) -> None:
        """End the evaluation of the batch."""
        self._session.tracker.forward_ends(type(layer).__name__, perf_counter_ns())

    # functions

    def _trains(self) -> None:
        """Record that the functions which are being traced compute gradients."""
        for function in self._calls:
            function.__dict__[TRAINS] = True

    def wrap_call(self, original: Any) -> Any:
        """Return `Function.__call__` with its calls reported."""
        return timed(original, self.call_begins, self.call_ends, self._session.fail)

    # rests of steps that another adapter marks, in which calls are not reported

    def rest_begins(self) -> tuple[list[Replaced], int]:
        """Return what is put back during a rest, and the nanoseconds from which `ran_unseen` is to be called of a step.

        Such a step took so long that XLA may have compiled a part of its function.  Nothing is put back if each call is to
        be seen.
        """
        about = {} if self._latest is None else self._latest.__dict__
        quickest = 0 if about.get("_jit_compile") else about.get(QUICKEST, 0)
        if not quickest:
            return [], ENDLESS
        return self.wrappers, SLOWER * quickest if _uses_xla(self._latest) else ENDLESS

    def ran_unseen(self, start_ns: int, end_ns: int) -> None:
        """Inspect a step whose call was not reported."""
        call = _Call(self._latest, ((), {}), start_ns, began=True, outermost=False, is_marked=True)
        with self._session.guarded("hook"):
            self._marked_call_ended(call, end_ns)

    def _trace_begins(self) -> None:
        """End the rest in the middle of a step in which a function is traced."""
        tracker = self._session.tracker
        rest = tracker.rest
        if isinstance(rest, MarkedRest) and not self._calls and get_ident() == self.thread:
            start_ns, is_open = rest.ends[-1], rest.is_open
            tracker.end_rest()
            if is_open and self._latest is not None:
                self._calls.append(self._latest)
                self._unseen_ns = start_ns

    def step_ended(self, end_ns: int) -> None:
        """End the call that ended with a step, or failed in it, and whose begin was not reported."""
        if self._unseen_ns:
            start_ns, self._unseen_ns = self._unseen_ns, 0
            self._calls.clear()
            self.ran_unseen(start_ns, end_ns)

    def call_begins(self, function: Any, /, *args: Any, **kwargs: Any) -> _Call | None:
        """Begin a call of a `tf.function`: from Python it is a step, a part of one, or many steps."""
        session, tracker, calls = self._session, self._session.tracker, self._calls
        if calls:
            self._called_in_graph(function, args, kwargs)
        if session.quiet or get_ident() != self.thread:
            return None
        is_marked = tracker.manual and tracker.owner != SCRIPT  # another adapter marks the steps
        if is_marked and calls:
            return None
        outermost = not is_marked and not calls and tracker.in_fetch == 0 and tracker.in_backward == 0 and self._eager()
        if outermost and not self.leads:
            self.leads = True
            self._lead()
        start_ns, known = perf_counter_ns(), function.__dict__.get(TRAINS)
        if outermost and known is not None:
            tracker.call_begins(id(function), start_ns, trains=known)
            if tracker.metering:
                tracker.own_ns += min(perf_counter_ns() - start_ns, METER_MAX_NS)
        calls.append(function)
        return _Call(function, (args, kwargs), start_ns, known is not None, outermost, is_marked)

    def call_ends(self, call: _Call, _result: Any, _error: BaseException | None) -> None:
        """End the call."""
        end_ns, tracker = perf_counter_ns(), self._session.tracker
        function, start_ns = call.function, call.start_ns
        self._calls.pop()
        if self._calls:
            return
        if call.is_marked:
            self._marked_call_ended(call, end_ns)
        elif call.outermost:
            if _uses_xla(function):
                self._find_compilation(function, call.arguments, start_ns, end_ns)
            self._called(function, start_ns, end_ns, began=call.began)
            if tracker.metering:
                tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MAX_NS)
        elif self.retracing.held:
            self.retracing.call_ended(end_ns, None)

    def _marked_call_ended(self, call: _Call, end_ns: int) -> None:
        """Record how long a call took in a step that another adapter marks."""
        function, start_ns = call.function, call.start_ns
        if not self._session.aside.depth:
            self._latest = function
            if self.ran is not None:
                self.ran.append(function)
        if _uses_xla(function):
            self._find_compilation(function, call.arguments, start_ns, end_ns)
        quickest = function.__dict__.get(QUICKEST)
        if quickest is None or self.retracing.held:
            waits = [*self.fetched, *self._stopwatch.batches(start_ns, take=False)]
            self._record_duration(function, start_ns, end_ns, waits)
        elif end_ns - start_ns < quickest:
            self._record_duration(function, start_ns, end_ns, self.fetched)

    def _called_in_graph(self, function: Any, args: Any, kwargs: Any) -> None:
        """Record the shapes of a call that is traced, if XLA compiles the function."""
        if not function.__dict__.get("_jit_compile") or get_ident() != self.thread:
            return
        if self._session.quiet or self._session.guard.is_off(XLA):
            return
        with self._session.guarded(XLA):
            self._calls[0].__dict__[INSIDE] = True
            self._in_graphs.traced(_name(function), args, kwargs)

    def _find_compilation(self, function: Any, arguments: tuple[Any, Any], start_ns: int, end_ns: int) -> None:
        """Record that XLA compiled a function for new shapes in the call that ended; what it traced anew counts as a trace."""
        if self._session.guard.is_off(XLA) or not self._eager():
            return
        try:
            name, reason = _name(function), another(function, *arguments)
            quickest = function.__dict__.get(QUICKEST)
            if quickest is None or end_ns - start_ns >= SLOWER * quickest:  # reading takes time as well
                inside = self._in_graphs.another(start_ns)
                name, reason = inside if inside and not reason else (name, reason)
            if reason and not self.retracing.held:
                about = Compile(compiler=XLA, again=True, reason=reason, **user_line())
                self.retracing.compiled(name, start_ns, about)
        except Exception as error:  # fail open; the arguments' own code may have raised it
            self._session.guard.failed(XLA, error)

    def _record_duration(self, function: Any, start_ns: int, end_ns: int, waits: list[Any]) -> None:
        """Keep the time of an outermost call if it is the quickest, or record what was traced or compiled in it."""
        quickest = function.__dict__.get(QUICKEST)
        retracing = self.retracing
        if not retracing.held and quickest is not None and end_ns - start_ns >= quickest:
            return
        ran_ns = end_ns - start_ns - sum(end - start for start, end in waits if start >= start_ns)
        if retracing.held and quickest is None:
            serial = function.__dict__.setdefault(SERIAL, next(self._serials))
            retracing.wait_for_run(serial, start_ns + ran_ns, xla=_uses_xla(function))
        elif retracing.held:
            if not function.__dict__.get("_jit_compile") and ran_ns < SLOWER * quickest:
                retracing.forget_compiled()  # the part that XLA compiles may have had the same shapes
            retracing.call_ended(start_ns + ran_ns, quickest)
        else:
            function.__dict__[QUICKEST] = ran_ns
            if quickest is None:
                retracing.ran(function.__dict__.get(SERIAL), ran_ns)

    @property
    def running(self) -> Any:
        """The outermost function that runs or is traced; None outside of all."""
        return self._calls[0] if self._calls else None

    def _called(self, function: Any, start_ns: int, end_ns: int, *, began: bool) -> None:
        tracker = self._session.tracker
        if self.ran is not None and not self._session.aside.depth:
            self.ran.append(function)
        trains = function.__dict__.setdefault(TRAINS, False)
        waits = self._stopwatch.batches(start_ns)
        self._record_duration(function, start_ns, end_ns, waits)
        name = _name(function)
        if waits:
            for start, end in waits:
                self._stages.batch(name, start, end)
            self._ran_batches(name, waits, (start_ns, end_ns), trains=trains)
            if len(waits) > 1:
                self._stages.epoch_ended()
            return
        if not began:
            tracker.call_begins(id(function), start_ns, trains=trains)
        if not tracker.manual:
            tracker.call_ends(name, start_ns, end_ns, trains=trains)

    def _ran_batches(self, name: str, waits: list[Times], call: tuple[int, int], *, trains: bool) -> None:
        """Record the steps of a function that fetches its batches itself."""
        tracker = self._session.tracker
        if tracker.manual:  # the function is a part of the script's own step
            tracker.waited(name, sum(end - start for start, end in waits))
            return
        ends = [wait.start_ns for wait in waits[1:]] + [call[1]]
        for number, (wait, end) in enumerate(zip(waits, ends, strict=True)):
            if number or not tracker.is_open or tracker.step_start < call[0]:
                tracker.begin_step(wait.start_ns, gradients=trains)
            tracker.waited(name, wait.end_ns - wait.start_ns)
            tracker.call_ends(name, wait.end_ns, max(end, wait.end_ns), trains=trains)


def _name(function: Any) -> str:
    return str(function.__dict__.get("_name") or "tf.function")


def _uses_xla(function: Any) -> bool:
    """Return whether XLA compiles a function or a part of it."""
    about = function.__dict__
    return bool(about.get("_jit_compile")) or about.get(NODES, 0) < 0 or INSIDE in about


# Operators a step, and the least that they take on this machine: together the part of a step that no larger batch costs.
# Operators that Python launches are counted during one step, without those of callbacks, saving and logging; those of a
# `tf.function` in its graph.  What each takes at least is calibrated with operators on single numbers; in a step without
# any `tf.function`, the Python between them counts, too.


STEPS = (10, 100)  # that are counted: those before the first trace and warm up
MAX_OPERATORS = 100_000  # of a step; after the last one, the script may go on for long without another
TIMED_STEPS = 7  # after a counted step
LAUNCHERS = ("TFE_Py_FastPathExecute", "TFE_Py_Execute")
CHAIN = 48  # operators of the calibration's graph
REPEATS = 20
CALIBRATION_SECONDS = 10.0  # it takes milliseconds; the training waits no longer if it hangs
PAIRS = 8  # of a forward and a backward operator, of the eager calibration
MOST_PYTHON = 10  # times the cost of an operator: what Keras and TensorFlow run in Python for each
MUST_COMPILE = "_XlaMustCompile"


class Costs(NamedTuple):
    """Microseconds: of an operator launched from Python, of a function's call, and of an operator in its graph."""

    eager: float
    call: float
    inside: float


class OperatorCount(Collector):
    """Counts the operators of a few training steps."""

    name = "operators"

    def __init__(self, session: Session, tensorflow: Any, loops: Loops, retracing: Retracing) -> None:
        self._session = session
        self._tf = tensorflow
        self._loops = loops
        self._retracing = retracing
        self._launchers: Any = import_module("tensorflow.python.pywrap_tfe")
        self._patches = Patches(session.fail)
        self._count = 0
        self._began_ns = self._inside_ns = 0  # of the counted step: its start, and the time in its operators
        self._aside_ns = 0  # of all callbacks and saves before it
        self._python_us = 0.0  # outside its operators
        self._due = list(STEPS)
        self._counted: tuple[list[Any], int, int] | None = None  # functions, operators from Python, batches of a step
        self._edges: list[int] = []  # starts of the steps after it, by a clock without waits for a core
        self._chains: tuple[Any, Any] | None = None
        retracing.traced = self._traced

    def forked(self) -> None:
        """Start over."""
        self.stop()
        self._due, self._counted = list(STEPS), None

    def failed(self) -> None:
        """Count no longer."""
        self.stop()

    def step_begins(self, step: int, mode: ModeKeys) -> bool:
        """Begin or end the count of a step, or time a later step."""
        if self._loops.ran is not None:
            if mode is ModeKeys.TRAIN:
                self._counted = self._loops.ran, self._count, self._session.tracker.batches
            self._edges = [perf_counter_ns() - waited_ns()]
            other_ns = self._inside_ns + self._session.aside.ns - self._aside_ns
            self._python_us = max(self._edges[0] - self._began_ns - other_ns, 0) / 1000
            self.stop()
        elif self._counted is not None:
            self._edges = [*self._edges, perf_counter_ns() - waited_ns()] if mode is ModeKeys.TRAIN else []
            if len(self._edges) > TIMED_STEPS:
                with self._session.work.doing("operators are counted"):
                    self._note(*self._counted)
                self._counted = None
        elif self._due and step >= self._due[0] and mode is ModeKeys.TRAIN:
            self._due = [due for due in self._due if due > step]
            if self._trains():
                self._begin()
        return self._loops.ran is None and self._counted is None and not self._due

    def _trains(self) -> bool:
        adapter = self._session.adapter
        return TENSORFLOW in (adapter.framework, getattr(adapter, "backend", ""))

    def _begin(self) -> None:
        self._count, self._inside_ns, self._loops.ran = 0, 0, []
        self._began_ns = perf_counter_ns() - waited_ns()
        thread, aside = self._loops.thread, self._session.aside
        self._aside_ns = aside.ns
        for name in LAUNCHERS:
            original = getattr(self._launchers, name)

            def launch(*args: Any, original: Any = original) -> Any:
                if get_ident() != thread or aside.depth:
                    return original(*args)
                self._count += 1
                if self._count > MAX_OPERATORS:
                    self.stop()
                    return original(*args)
                start_ns = perf_counter_ns()
                try:
                    return original(*args)
                finally:
                    self._inside_ns += perf_counter_ns() - start_ns

            self._patches.put(self._launchers, name, launch)

    def stop(self) -> None:
        """Restore what launches operators."""
        self._patches.remove()
        self._loops.ran = None

    def _traced(self, made: Any) -> None:
        """Count the operators of a graph for the function that is called."""
        function = self._loops.running
        if function is not None and get_ident() == self._loops.thread:
            self._session.run(self, lambda: function.__dict__.update({NODES: _operators(made)}))

    def _note(self, functions: list[Any], launched: int, batches: int) -> None:
        nodes = [function.__dict__.get(NODES, -1) for function in functions]
        if (nodes and min(nodes) < 0) or not (nodes or launched):
            return  # the number of operators is unknown
        costs = self._calibrated(graphs=bool(nodes))
        inside = sum(nodes) * max(batches, 1)
        eager = max(launched - len(nodes), 0)
        of_python = min(self._python_us, eager * costs.eager * MOST_PYTHON) if not nodes else 0.0
        total = of_python + eager * costs.eager + len(nodes) * costs.call + inside * costs.inside
        count, now = eager + inside, perf_counter_ns()
        if count and total > 0:
            step_us = statistics.median(after - before for before, after in pairwise(self._edges)) / 1000
            found = Operators(
                operators=count,
                fixed_us=round(total / count, 4),
                step_us=round(step_us, 1),
                eager=None if nodes else True,
            )
            self._session.append(found.span("operators", now, now, self._session.tracker.train_number))

    def _calibrated(self, *, graphs: bool) -> Costs:
        """Measure in a separate thread, which has none of the scopes that the script has entered."""
        measure, hangs = functools.partial(self._measure, graphs=graphs), "the calibration of operators does not end"
        with self._retracing.ignored():
            return run_bounded(lambda: self._session.work.elsewhere(measure), CALIBRATION_SECONDS, hangs)

    def _measure(self, *, graphs: bool) -> Costs:
        tf = self._tf
        with tf.device("/device:CPU:0"):
            eager = self._eager()
            if not graphs or tf.config.functions_run_eagerly():
                return Costs(eager, eager, eager)
            x = tf.ones((1, 1))
            if self._chains is None:
                self._chains = self._chain(1), self._chain(CHAIN)
            short, long = (_quickest(lambda chain=chain: chain(x)) for chain in self._chains)
            return Costs(eager, short, max(long - short, 0.0) / (CHAIN - 1))

    def _chain(self, length: int) -> Any:
        tf = self._tf

        def multiply(x: Any) -> Any:
            for _ in range(length):
                x = tf.raw_ops.MatMul(a=x, b=x)
            return x

        return tf.function(multiply, autograph=False)

    def _eager(self) -> float:
        tf = self._tf
        x = tf.ones((1, 1))

        def step() -> None:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x
                for _ in range(PAIRS):
                    y = tf.nn.relu(y)
            tape.gradient(y, x)

        return _quickest(step) / (2 * PAIRS)


def _operators(made: Any) -> int:
    """Return the operators of a traced function and of those inside it; -1 if XLA compiles one.

    They are counted where Python has them already: a large graph takes long to serialize, the more so with constants.
    """
    count = len(made.graph.get_operations())
    waiting, seen = list(made._inference_function.children), set()  # it has no public name
    while waiting:
        called = waiting.pop()
        if called.name in seen:
            continue
        seen.add(called.name)
        definition = called._cached_definition  # of what was called; `definition` would make it anew
        if definition is not None and MUST_COMPILE in definition.attr and definition.attr[MUST_COMPILE].b:
            return -1
        graph = called._cached_graph  # `graph` would make one
        if graph is not None:
            count += len(graph.get_operations()) - len(graph.inputs)
        waiting += called.children
    return count


def _quickest(action: Any) -> float:
    """Return the microseconds of the quickest of some calls: other processes may use the cores."""
    action()
    taken = []
    for _ in range(REPEATS):
        start = perf_counter_ns()
        action()
        taken.append(perf_counter_ns() - start)
    return min(taken) / 1000


# The adapter.


OPTIONS = {"host_tracer_level": 2, "python_tracer_level": 0, "device_tracer_level": 1}


class TensorFlowProfiler(Profiler):
    """Profiles host and devices; TensorFlow writes the trace itself as it stops."""

    framework = "tensorflow"

    def __init__(self) -> None:
        self._owner: Any = import_module("tensorflow.python.profiler.profiler_v2")
        self.entry: tuple[Any, str] = self._owner._pywrap_profiler, SESSION  # TensorFlow's own name

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


STOPWATCH = "tensorflow stopwatch"
_PIPELINES = f"{os.sep}tensorflow{os.sep}python{os.sep}data{os.sep}ops{os.sep}"


def _makes_batches() -> bool:
    """Return whether a function is traced as a part of a pipeline, and not of a step."""
    frame: FrameType | None = sys._getframe(1)  # inspect.currentframe() is the same with a call more
    for _ in range(MAX_DEPTH):
        if frame is None:
            break
        if _PIPELINES in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


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
        self._callbacks = HostCallbacks(session.append, lambda: session.tracker.latest_number, session.fail)

    def install(self) -> None:
        """Patch TensorFlow."""
        os.register_at_fork(after_in_child=self.stopwatch.forked)
        self.session.add(self.retracing)
        self.session.add(self.stages)
        self.session.add(self._operators)
        self.session.add(self._callbacks)
        for name in ("numpy_function", "py_function"):
            wrapped = self._callbacks.wrap(name, getattr(self._tf, name), "func", _makes_batches)
            self._patches.put(self._tf, name, wrapped)
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
        call = patches.replace(functions.Function, "__call__", loops.wrap_call)
        loops.wrappers = [call] if call is not None else []
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
        self.session.tracker.end_rest()
        self._patches.remove()
        self.stages.remove()
        self.session.discard(self.retracing)
        self.session.discard(self.stages)
        self._operators.stop()
        self.session.discard(self._operators)
        self.session.discard(self._callbacks)

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
        loops.step_ended(perf_counter_ns())
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

    def complete(self, records: list[Span]) -> list[Span]:
        """Return records of steps with how long they waited inside graphs."""
        return self._late_waits.complete(records)
