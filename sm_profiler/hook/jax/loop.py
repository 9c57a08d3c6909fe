"""The steps of a loop, found in its calls of compiled functions.

JAX has neither models nor optimizers: a script calls functions that it compiled with `jax.jit`, or that `jax.grad`
returned.  A turn of the loop begins with the first call after a batch was fetched, or, in a loop without a loader, with a
function that was called in this turn already.  A turn counts as a step once one of its functions is called again: what
prepares the training (`jit(model.init)`) is called once.

A turn trains if one of its functions computes gradients, which shows while JAX traces the function.  In a script that
never does (evolution strategies, gradients by hand), the flow of results decides: what trains gets its own results again.
"""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import attrs

from sm_profiler.formats.event_names import COMPILED_STEP, QUEUED, RESULTS
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.rest import CallRest
from sm_profiler.hook.steps import AGAIN, REGULAR, StepTracker

MAX_LEAVES = 500  # of a function's arguments and results that are compared
MAX_CALLS = 64  # kept of a turn that may be no step
FIRST_TURNS = 2  # calls of a function in which what precedes it may still prepare the training
PATIENCE = 16  # calls after which unused results are forgotten
_EVALUATES = re.compile(
    r"(?:^|_)(?:eval|evaluate|evaluation|valid|validate|validation|test|predict|infer|inference)(?:_|$)"
)
_SAME = 0.5  # a function gets the same arguments again if this share of them are the same objects


@attrs.frozen(eq=False)
class Part:
    """Calls of a function while the hook rests.

    Attributes:
        rest: the rest.
        calls: when its calls began.
        limit: it is called no more often than this has elements: once in each step.
    """

    rest: CallRest
    calls: list[int]
    limit: Sequence[int]


@attrs.define(eq=False)
class Compiled:
    """A compiled function of the script.

    Attributes:
        name: its name.
        is_compiled: it is; else it is what `jax.grad` returned.
        calls: its outermost calls.
        gradients: it computes gradients.
        mode: what follows from its arguments and results for a step that begins with it.
        settled: they were compared.
        recurs: it gets its own results again, perhaps through others.
        transforms: its results of real numbers are as many as half of its arguments.
        feeds: functions that got its results.
        alone: turns that began with it and did not train.
        joined: turns that began with it and did.
        signature: types of its arguments when it was last compiled.
        compilations: how often it was compiled.
        made: how often the script passed it to `jax.jit`.
        quickest_ns: its quickest call that compiled nothing.
        part: its calls in the rest, if there is one.
    """

    name: str
    is_compiled: bool = attrs.field(default=True, kw_only=True)
    calls: int = 0
    gradients: bool = False
    mode: ModeKeys = ModeKeys.TRAIN
    settled: bool = False
    recurs: bool = False
    transforms: bool = False
    feeds: set[Compiled] = attrs.field(factory=set, repr=False)
    alone: int = 0
    joined: int = 0
    signature: dict[str, str] = attrs.field(factory=dict)
    compilations: int = 0
    made: int = 0
    quickest_ns: int = 1 << 62
    part: Part | None = None
    _arguments: list[Any] = attrs.field(factory=list)  # weak references, of the last call

    def __attrs_post_init__(self) -> None:
        """Judge by the name what evaluates."""
        if _EVALUATES.search(self.name):
            self.mode, self.settled = ModeKeys.EVAL, True

    def sees(self, leaves: list[Any], *, others_recur: bool) -> None:
        """Judge by the second call: what trains uses results again, or gets changed parameters.

        Args:
            leaves: its arguments.
            others_recur: another function gets its own results again.
        """
        if self.calls > 1 and self._arguments:
            pairs = zip(_alive(self._arguments), leaves, strict=False)
            same = sum(argument is not None and argument is leaf for argument, leaf in pairs) >= _SAME * len(leaves)
            if same or (others_recur and not self.recurs):
                self.mode = ModeKeys.EVAL
            self.settled = True
            self._arguments = []
        else:
            self._arguments = [_reference(leaf) for leaf in leaves]

    def fed(self, consumer: Compiled) -> None:
        """Record that another function, or this one, received a result of this function."""
        if consumer not in self.feeds:
            self.feeds.add(consumer)
            reached, todo = {self}, [consumer]
            while todo:
                reader = todo.pop()
                if reader is self:
                    self.recurs = consumer.recurs = True
                    break
                if reader not in reached:
                    reached.add(reader)
                    todo.extend(reader.feeds)


class _Call(NamedTuple):
    function: Compiled | None  # None: waiting for results
    name: str
    start_ns: int
    end_ns: int


class Loop:
    """Passes steps and calls to the tracker.

    Args:
        tracker: the session's.
        leads: called before the first step.
        leaves: returns the leaves of a tree of arguments.

    Attributes:
        rest: steps of which only calls and waits are noted, or None.
        codes: code of the functions around the script's calls and waits.
        waited: the script waited for results in this turn, if only to find them ready.
    """

    def __init__(self, tracker: StepTracker, leads: Callable[[], None], leaves: Callable[[Any], list[Any]]) -> None:
        self._tracker = tracker
        self._leads = leads
        self._leaves = leaves
        self.rest: CallRest | None = None
        self.codes: set[CodeType] = set()
        self.reset()

    def reset(self) -> None:
        """Start over, in a forked child."""
        self._functions: dict[int, Compiled] = {}  # called in this turn
        self._before: dict[int, Compiled] = {}  # in the turn before
        self._parts: dict[int, Compiled] = {}  # in the last turn that trained, before this turn
        self._opener: Compiled | None = None  # function that began the open step
        self._mode = ModeKeys.TRAIN  # of the latest step
        self._turn: deque[_Call] | None = None  # a turn that may be no step, after the last step
        self._results: dict[int, tuple[Any, Compiled]] = {}  # of functions whose mode is unknown
        self._unused = 0  # calls since a result was found in an argument
        self._arguments = 0  # leaves of the latest call
        self._gradients = False  # a function computes gradients
        self._recurs = False  # a function gets its own results again
        self.waited = False
        self._queued = False  # a call of this turn waited for those before it
        self._regular = 0  # turns in a row like the one before that waited for their results

    # calls

    def begins(self, function: Compiled, start_ns: int, arguments: Any) -> bool:
        """Record the start of an outermost call; return whether a rest begins, in which nothing more is reported of it."""
        tracker = self._tracker
        if tracker.rest is not None:
            tracker.end_rest()
        function.calls += 1
        if not function.settled or self._results:
            self._look_at(function, arguments)
        if tracker.manual:
            return False
        key = id(function)
        if tracker.begins_call(again=self._is_next(function, key)):
            if self._rests(function, start_ns):
                return True
            self._before, self._functions = self._functions, {key: function}
            if function.calls > 1:
                if self._confirm(function) and self._mode is ModeKeys.TRAIN:
                    self._parts = self._before
                self._begin(function, self._mode_of(function), start_ns)
            else:
                tracker.end_step()
                self._turn = deque(maxlen=MAX_CALLS)
        else:
            if function.calls > 1 and self._turn is not None:
                self._confirm(function)
            self._functions[key] = function
        return False

    def _is_next(self, function: Compiled, key: int) -> bool:
        """Return whether this call begins a turn of a loop without a loader, or another turn with batches fetched ahead."""
        if key in self._functions or (self._turn is not None and key in self._before):
            return True
        if self._tracker.reads_loader or (self._functions and self._turn is not None):
            return False
        if function.calls == 1:  # new in a loop that is known: perhaps the first step of an evaluation
            return all(called.calls > 1 for called in self._functions.values())
        return not self._functions or self._is_other(function, key)

    def _is_other(self, function: Compiled, key: int) -> bool:
        """Return whether a function does not belong to the open step: one trains, and the other evaluates."""
        mode = self._mode_of(function)
        if mode is self._mode or not (function.settled or function.gradients):
            return False
        if mode is ModeKeys.TRAIN:
            return not self._is_prepared(function)
        if function.recurs and function.transforms:  # sums of gradients, moving averages of parameters
            return False
        return key not in self._parts and (not function.recurs or function.alone > 0)

    def _is_prepared(self, function: Compiled) -> bool:
        """Return whether the open step, which has not trained yet, only prepares the call of a function that trains."""
        opener = self._opener
        return opener is not None and (function in opener.feeds or opener.joined >= opener.alone)

    def ended(self, function: Compiled | None, name: str, start_ns: int, end_ns: int) -> None:
        """Record the end of a call, or of waiting for its results."""
        if self._turn is None or self._tracker.manual:
            if function is not None and function.gradients and self._mode is not ModeKeys.TRAIN:
                self._trains()
            self._tracker.call_ended(name, start_ns, end_ns, RESULTS if function is None else COMPILED_STEP)
        else:
            self._turn.append(_Call(function, name, start_ns, end_ns))

    def queued(self, function: Compiled, start_ns: int, end_ns: int) -> None:
        """Record that a call has waited for those before it."""
        if self._turn is None or self._tracker.manual:
            self._queued = True
            self._tracker.call_ended(function.name, start_ns, end_ns, QUEUED)

    def failed(self, function: Compiled) -> None:
        """Forget a call that raised an error, and the step if it began with this call."""
        function.calls -= 1
        if self._functions.pop(id(function), None) is not None and self._opener is function and not self._functions:
            self._tracker.cancel_step()
            self._opener, self._functions = None, self._before

    def returned(self, function: Compiled, result: Any) -> None:
        """Remember the results of a function whose mode is unknown."""
        if not function.settled and not function.gradients and len(self._results) < MAX_LEAVES:
            self._unused = 0
            leaves = self._leaves(result)[:MAX_LEAVES]
            function.transforms = sum(map(_is_float, leaves)) >= _SAME * self._arguments > 0
            for leaf in leaves:
                reference = _reference(leaf)
                if reference is not None:
                    self._results[id(leaf)] = reference, function

    def computes_gradients(self, function: Compiled) -> None:
        """Record that a function computes gradients."""
        function.gradients = function.settled = self._gradients = True

    # rest: steps like those before, each of which waits for its results

    def _rests(self, function: Compiled, start_ns: int) -> bool:
        """Return whether a rest begins, and with it the step of this call."""
        turn = self._functions
        regular = self.waited and not self._queued and function is self._opener and self._turn is None
        self._regular = self._regular + 1 if regular and turn.keys() == self._before.keys() else 0
        self.waited = self._queued = False
        known = all(one.is_compiled and (one.settled or one.gradients) for one in turn.values())
        if self._regular < REGULAR or not known:
            return False
        self.rest = rest = self._tracker.begin_call_rest(start_ns, self._awake, self._phase_of)
        if rest is None:
            return False
        for one in turn.values():
            first = one is function
            one.part = Part(rest, rest.ends if first else [], range(rest.steps) if first else rest.ends)
        return True

    def _awake(self) -> None:
        """Report all again; what was called since the latest step began is known."""
        turn, rest, self.rest = self._functions, self.rest, None
        called = {}
        for key, one in turn.items():
            if one.part is not None and rest is not None and len(one.part.calls) == len(rest.ends):
                called[key] = one
            one.part = None
        self._before, self._functions, self.waited = turn, called, len(called) == len(turn)
        self._regular = REGULAR if self.waited else REGULAR - AGAIN

    def _phase_of(self, stack: Sequence[FrameType]) -> str:
        return "compiled" if any(frame.f_code in self.codes for frame in stack) else "outside"

    # parts

    def _mode_of(self, function: Compiled) -> ModeKeys:
        """Return the mode of a step that begins with this function, as far as it is known."""
        if function.gradients:
            return ModeKeys.TRAIN
        return ModeKeys.EVAL if self._gradients else function.mode

    def _look_at(self, function: Compiled, arguments: Any) -> None:
        leaves = self._leaves(arguments)[:MAX_LEAVES]
        self._arguments = len(leaves)
        self._unused += 1
        for leaf in leaves:
            reference, producer = self._results.get(id(leaf), (None, None))
            if producer is not None and reference is not None and reference() is leaf:
                producer.fed(function)
                self._recurs = self._recurs or producer.recurs
        if not function.settled:
            function.sees(leaves, others_recur=self._recurs)
            self._results = {key: result for key, result in self._results.items() if not result[1].settled}
        if self._unused > PATIENCE:
            self._results = {}

    def _begin(self, function: Compiled, mode: ModeKeys, start_ns: int) -> None:
        self._leads()
        self._mode, self._opener = mode, function
        if mode is ModeKeys.TRAIN:
            function.joined += 1
        else:
            function.alone += 1
        self._tracker.begin_step(start_ns, gradients=mode is ModeKeys.TRAIN, mode=mode)

    def _trains(self) -> None:
        """Count the open step as training: it began with a function that only prepares it."""
        self._mode = ModeKeys.TRAIN
        self._tracker.call_trains()
        if self._opener is not None:
            self._opener.alone -= 1
            self._opener.joined += 1

    def _confirm(self, function: Compiled) -> bool:
        """Record the turn as a step if it has this function, which repeats: from its call on, without what prepared it.

        Also if other functions in it train, or if this function trains again after them: an evaluation.  Return whether it is a step.
        """
        if self._turn is None:
            return self._opener is not None
        calls, self._turn = list(self._turn), None
        at = next((at for at, call in enumerate(calls) if call.function is function), None)
        trains = any(call.function is not None and call.function.gradients for call in calls[at or 0 :])
        if at is None and (trains or (function.gradients and function.calls > FIRST_TURNS)):
            at = next((at for at, call in enumerate(calls) if call.function is not None), None)
        if at is None:
            return False
        opener = calls[at].function or function
        self._begin(opener, ModeKeys.TRAIN if trains else self._mode_of(opener), calls[at].start_ns)
        for call in calls[at:]:
            phase = RESULTS if call.function is None else COMPILED_STEP
            self._tracker.call_ended(call.name, call.start_ns, call.end_ns, phase)
        return True


def _reference(leaf: Any) -> Any:
    """Return a weak reference; None for what has none, such as numbers."""
    try:
        return weakref.ref(leaf)
    except TypeError:
        return None


def _alive(references: list[Any]) -> list[Any]:
    return [None if reference is None else reference() for reference in references]


def _is_float(leaf: Any) -> bool:
    """Return whether a leaf holds real numbers; actions and keys of random numbers are no parameters or gradients."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is None or getattr(dtype, "kind", "") in {"f", "c", "V"}  # V: bfloat16
