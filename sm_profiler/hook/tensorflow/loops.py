"""Loops that the script writes itself: fetches, tapes, optimizers and calls of `tf.function`, as the tracker wants them.

What runs in Python is seen as it happens.  Of a function that was traced, only its call is seen; the stopwatch inside it
reports which batches it fetched.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

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


class Loops:
    """Wraps what loops call.

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
        self._tf = tensorflow
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

    def wrap_fetch(self, original: Any) -> Any:
        """Return a method that fetches a batch, timed if it runs eagerly on the training thread."""
        session, tracker, eager = self._session, self._session.tracker, self._tf.executing_eagerly

        @functools.wraps(original)
        def fetch(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            if session.quiet or tracker.in_fetch or get_ident() != self.thread or not eager():
                return original(iterator, *args, **kwargs)
            try:
                stream = iterator.__dict__.get(STREAM)
                if stream is None:
                    stream = iterator.__dict__[STREAM] = Stream(type(iterator).__name__, weakref.ref(iterator))
                tracker.fetch_begins()
            except Exception as error:  # fail open
                session.fail(error)
                return original(iterator, *args, **kwargs)
            start_ns = perf_counter_ns()
            got = failed = False
            try:
                batch = original(iterator, *args, **kwargs)
                got = True
            except (StopIteration, self._tf.errors.OutOfRangeError):
                raise
            except BaseException:
                failed = True
                raise
            else:
                return batch
            finally:
                end_ns = perf_counter_ns()
                try:
                    self._fetched(stream, start_ns, end_ns, got=got, failed=failed)
                    if tracker.metering:
                        tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MAX_NS)
                except Exception as error:  # fail open
                    tracker.in_fetch = 0
                    session.fail(error)

        return fetch

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
        if session.quiet or session.tracker.manual or get_ident() != self.thread or not self._tf.executing_eagerly():
            return False
        if not self.leads:
            self.leads = True
            self._lead()
        return True

    def wrap_enter(self, original: Any) -> Any:
        """Return `GradientTape.__enter__`, with which the forward begins."""
        session, tracker = self._session, self._session.tracker

        @functools.wraps(original)
        def __enter__(tape: Any) -> Any:  # replaces a method of this name
            try:
                if self._tape is None and not tracker.in_backward and self._is_loop():
                    start_ns = perf_counter_ns()
                    self._tape, self._forward = tape, True
                    tracker.forward_begins(TAPE, start_ns, gradients=True)
                    if tracker.metering:
                        tracker.own_ns += min(perf_counter_ns() - start_ns, METER_MAX_NS)
            except Exception as error:  # fail open
                session.fail(error)
            return original(tape)

        return __enter__

    def wrap_exit(self, original: Any) -> Any:
        """Return `GradientTape.__exit__`, with which the forward ends."""

        @functools.wraps(original)
        def __exit__(tape: Any, *args: Any) -> Any:  # replaces a method of this name
            try:
                return original(tape, *args)
            finally:
                if tape is self._tape:
                    self._forward_ends()
                    self._tape = None

        return __exit__

    def _forward_ends(self) -> None:
        if self._forward:
            self._forward = False
            try:
                self._session.tracker.forward_ends("GradientTape", perf_counter_ns())
            except Exception as error:  # fail open
                self._session.fail(error)

    def wrap_gradient(self, original: Any) -> Any:
        """Return `GradientTape.gradient`, the backward."""
        session, tracker = self._session, self._session.tracker

        @functools.wraps(original)
        def gradient(tape: Any, *args: Any, **kwargs: Any) -> Any:
            inside = self._tape is not None and tape is not self._tape  # a gradient that the loss contains
            if inside or not self._is_loop():
                self._trains()
                return original(tape, *args, **kwargs)
            self._forward_ends()  # called inside the tape's block
            try:
                tracker.backward_begins(perf_counter_ns())
            except Exception as error:  # fail open
                session.fail(error)
            try:
                return original(tape, *args, **kwargs)
            finally:
                end_ns = perf_counter_ns()
                try:
                    tracker.backward_ends(end_ns)
                    if tracker.metering:
                        tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MAX_NS)
                except Exception as error:  # fail open
                    tracker.in_backward = 0
                    session.fail(error)

        return gradient

    def wrap_apply(self, original: Any) -> Any:
        """Return `Optimizer.apply`."""
        session, tracker = self._session, self._session.tracker

        @functools.wraps(original)
        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            key = id(optimizer)
            if not self._is_loop():
                self._trains()
                return original(optimizer, *args, **kwargs)
            try:
                tracker.has_optimizer = True
                tracker.optimizer_begins(key, perf_counter_ns(), type(optimizer).__name__)
            except Exception as error:  # fail open
                session.fail(error)
            try:
                return original(optimizer, *args, **kwargs)
            finally:
                try:
                    tracker.optimizer_ends(key, type(optimizer).__name__, perf_counter_ns())
                except Exception as error:  # fail open
                    session.fail(error)

        return apply

    def wrap_layer(self, original: Any) -> Any:
        """Return a Keras layer's call: outside of any tape it evaluates a batch, if one has arrived."""
        session, tracker = self._session, self._session.tracker

        @functools.wraps(original)
        def __call__(layer: Any, *args: Any, **kwargs: Any) -> Any:  # replaces a method of this name
            try:
                begins = (
                    tracker.batch_waits and self._tape is None and not tracker.forward_key and self._is_loop()
                    and not self._calls
                )  # fmt: skip
                if begins:
                    tracker.forward_begins(LAYER, perf_counter_ns(), gradients=False)
            except Exception as error:  # fail open
                begins = False
                session.fail(error)
            try:
                return original(layer, *args, **kwargs)
            finally:
                if begins:
                    try:
                        tracker.forward_ends(type(layer).__name__, perf_counter_ns())
                    except Exception as error:  # fail open
                        session.fail(error)

        return __call__

    # functions

    def _trains(self) -> None:
        """Note that the functions which are being traced compute gradients."""
        for function in self._calls:
            function.__dict__[TRAINS] = True

    def wrap_call(self, original: Any) -> Any:
        """Return `Function.__call__`: a call from Python is a step, a part of one, or many steps."""
        session, tracker, eager = self._session, self._session.tracker, self._tf.executing_eagerly

        @functools.wraps(original)
        def __call__(function: Any, *args: Any, **kwargs: Any) -> Any:  # replaces a method of this name
            calls = self._calls
            if calls:
                self._called_in_graph(function, args, kwargs)
            if session.quiet or get_ident() != self.thread or (tracker.manual and tracker.owner != SCRIPT):
                return self._call_unseen(original, function, args, kwargs)
            outermost = not calls and tracker.in_fetch == 0 and tracker.in_backward == 0 and eager()
            if outermost and not self.leads:
                self.leads = True
                self._lead()
            start_ns = perf_counter_ns()
            known = function.__dict__.get(TRAINS)
            calls.append(function)
            try:
                if outermost and known is not None:
                    try:
                        tracker.call_begins(id(function), start_ns, trains=known)
                        if tracker.metering:
                            tracker.own_ns += min(perf_counter_ns() - start_ns, METER_MAX_NS)
                    except Exception as error:  # fail open
                        session.fail(error)
                return original(function, *args, **kwargs)
            finally:
                calls.pop()
                if not calls:
                    self._call_ended(function, (args, kwargs), start_ns, began=known is not None, outermost=outermost)

        return __call__

    def _call_ended(
        self, function: Any, arguments: tuple[Any, Any], start_ns: int, *, began: bool, outermost: bool
    ) -> None:
        end_ns = perf_counter_ns()
        tracker = self._session.tracker
        try:
            if outermost:
                if _uses_xla(function):
                    self._find_compilation(function, arguments, start_ns, end_ns)
                self._called(function, start_ns, end_ns, began=began)
                if tracker.metering:
                    tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MAX_NS)
            elif self.retracing.held:
                self.retracing.call_ended(end_ns, None)
        except Exception as error:  # fail open
            self._session.fail(error)

    def _call_unseen(self, original: Any, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function that begins no step here: another adapter marks the steps, or another thread runs."""
        if self._calls or self._session.quiet or get_ident() != self.thread:
            return original(function, *args, **kwargs)
        self._calls.append(function)
        start_ns = perf_counter_ns()
        try:
            return original(function, *args, **kwargs)
        finally:
            end_ns = perf_counter_ns()
            self._calls.clear()
            if self.ran is not None and not self._session.aside.depth:
                self.ran.append(function)
            try:
                if _uses_xla(function):
                    self._find_compilation(function, (args, kwargs), start_ns, end_ns)
                quickest = function.__dict__.get(QUICKEST)
                if quickest is None or self.retracing.held:
                    waits = [*self.fetched, *self._stopwatch.batches(start_ns, take=False)]
                    self._note_duration(function, start_ns, end_ns, waits)
                elif end_ns - start_ns < quickest:
                    self._note_duration(function, start_ns, end_ns, self.fetched)
            except Exception as error:  # fail open
                self._session.fail(error)

    def _called_in_graph(self, function: Any, args: Any, kwargs: Any) -> None:
        """Note the shapes of a call that is traced, if XLA compiles the function."""
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
        """Note that XLA compiled a function for new shapes in the call that ended; what it traced anew counts as a trace."""
        if self._session.guard.is_off(XLA) or not self._tf.executing_eagerly():
            return
        try:
            name, reason = _name(function), another(function, *arguments)
            quickest = function.__dict__.get(QUICKEST)
            if quickest is None or end_ns - start_ns >= SLOWER * quickest:  # reading takes time, too
                inside = self._in_graphs.another(start_ns)
                name, reason = inside if inside and not reason else (name, reason)
            if reason and not self.retracing.held:
                about = {"compiler": XLA, "again": True, "reason": reason} | user_line()
                self.retracing.compiled(name, start_ns, about)
        except Exception as error:  # fail open; the arguments' own code may have raised it
            self._session.guard.failed(XLA, error)

    def _note_duration(self, function: Any, start_ns: int, end_ns: int, waits: list[Any]) -> None:
        """Note how long an outermost call took, or record what was traced or compiled in it."""
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
        self._note_duration(function, start_ns, end_ns, waits)
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
