"""Loops that the script writes itself: fetches, tapes, optimizers and calls of `tf.function`, as the tracker wants them.

What runs in Python is seen as it happens.  Of a function that was traced, only its call is seen; the stopwatch inside it
reports which batches it fetched.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from sm_profiler.formats.recorded import Compile
from sm_profiler.hook.caller import user_line
from sm_profiler.hook.steps import METER_MAX_NS, SCRIPT, Stream
from sm_profiler.hook.tensorflow.compilations import INSIDE, NODES, SLOWER, XLA, InGraphs, Retracing, another

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm_profiler.hook.session import Session
    from sm_profiler.hook.tensorflow.pipelines import Stages
    from sm_profiler.hook.tensorflow.stopwatch import Stopwatch, Times

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
        self.retracing = Retracing(session.append, lambda: session.tracker.number)
        self.retracing.is_called = lambda: bool(self._calls) and get_ident() == self.thread
        self.thread = threading.main_thread().ident
        self.fetched: list[tuple[int, int]] = []
        self._in_graphs = InGraphs(tensorflow, stopwatch)
        self._calls: list[Any] = []  # functions that run or are traced, the outermost first
        self._serials = itertools.count()
        self.ran: list[Any] | None = None
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
        if self.ran is not None and not self._session.aside.depth:
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
        try:
            self._calls[0].__dict__[INSIDE] = True
            self._in_graphs.traced(_name(function), args, kwargs)
        except Exception as error:  # fail open
            self._session.guard.failed(XLA, error)

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
