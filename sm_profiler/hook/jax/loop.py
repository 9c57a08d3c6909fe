"""The steps of a loop, found in its calls of compiled functions.

JAX has neither models nor optimizers: a script calls functions that it compiled with `jax.jit`.  A turn of the loop
begins with the first call after a batch was fetched, or, in a loop without a loader, with a function that was called in
this turn already.  A turn counts as a step once one of its functions is called again: what prepares the training
(`jit(model.init)`) is called once.
"""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs

from sm_profiler.formats.event_names import COMPILED_STEP, RESULTS
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.steps import StepTracker

MAX_LEAVES = 500  # of a function's arguments and results that are compared
MAX_CALLS = 64  # kept of a turn that may be no step
_EVALUATES = re.compile(
    r"(?:^|_)(?:eval|evaluate|evaluation|valid|validate|validation|test|predict|infer|inference)(?:_|$)"
)
_SAME = 0.5  # a function gets the same arguments again if more of them than this share are the same objects


@attrs.define(eq=False)
class Compiled:
    """A compiled function of the script.

    Attributes:
        name: its name.
        calls: its outermost calls.
        mode: mode of a step that begins with it.
        settled: the mode is known.
        signature: types of its arguments when it was last compiled.
        compilations: how often it was compiled.
    """

    name: str
    calls: int = 0
    mode: ModeKeys = ModeKeys.TRAIN
    settled: bool = False
    signature: dict[str, str] = attrs.field(factory=dict)
    compilations: int = 0
    _arguments: list[Any] = attrs.field(factory=list)  # weak references, of the last call
    feeds: bool = False  # a compiled function got one of its results

    def __attrs_post_init__(self) -> None:
        """Judge by the name what evaluates."""
        if _EVALUATES.search(self.name):
            self.mode, self.settled = ModeKeys.EVAL, True

    def sees(self, leaves: list[Any], *, others_feed: bool) -> None:
        """Judge by the second call: what trains uses results again, or gets changed parameters.

        Args:
            leaves: its arguments.
            others_feed: another function's results are used again.
        """
        if self.calls > 1 and self._arguments:
            pairs = zip(_alive(self._arguments), leaves, strict=False)
            same = sum(one is not None and one is leaf for one, leaf in pairs)
            if not self.feeds and (others_feed or same > _SAME * len(leaves)):
                self.mode = ModeKeys.EVAL
            self.settled = True
            self._arguments = []
        else:
            self._arguments = [_reference(leaf) for leaf in leaves]


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
    """

    def __init__(self, tracker: StepTracker, leads: Callable[[], None], leaves: Callable[[Any], list[Any]]) -> None:
        self._tracker = tracker
        self._leads = leads
        self._leaves = leaves
        self.reset()

    def reset(self) -> None:
        """Start over, in a forked child."""
        self._functions: dict[int, Compiled] = {}  # called in this turn
        self._before: dict[int, Compiled] = {}  # in the one before
        self._mode = ModeKeys.TRAIN  # of the latest step
        self._turn: deque[_Call] | None = None  # a turn that may be a step, after the last step
        self._results: dict[int, tuple[Any, Compiled]] = {}  # of functions whose mode is unknown
        self._trains = False  # a function's results are used again

    # calls

    def begins(self, function: Compiled, start_ns: int, arguments: Any) -> None:
        """Note the start of an outermost call."""
        tracker = self._tracker
        function.calls += 1
        if not function.settled or self._results:
            self._look_at(function, arguments)
        if tracker.manual:
            return
        key = id(function)
        if tracker.begins_call(again=self._is_next(function, key)):
            self._before, self._functions = self._functions, {key: function}
            if function.calls > 1:
                self._confirm(key)
                self._begin(function.mode, start_ns)
            else:
                tracker.end_step()
                self._turn = deque(maxlen=MAX_CALLS)
        else:
            if function.calls > 1 and self._turn is not None:
                self._confirm(key)
            self._functions[key] = function

    def _is_next(self, function: Compiled, key: int) -> bool:
        """Return whether this call begins a turn of a loop without a loader, or another turn with batches fetched ahead."""
        if key in self._functions or (self._turn is not None and key in self._before):
            return True
        if self._tracker.reads_loader:
            return False
        if not self._functions:
            return True
        if self._turn is not None:
            return False
        if function.calls == 1:  # new in a loop that is known: perhaps the first step of an evaluation
            return all(one.calls > 1 for one in self._functions.values())
        return function.settled and function.mode is not self._mode

    def ended(self, function: Compiled | None, name: str, start_ns: int, end_ns: int) -> None:
        """Note the end of a call, or of waiting for its results."""
        if self._turn is None or self._tracker.manual:
            self._tracker.call_ended(name, start_ns, end_ns, RESULTS if function is None else COMPILED_STEP)
        else:
            self._turn.append(_Call(function, name, start_ns, end_ns))

    def returned(self, function: Compiled, result: Any) -> None:
        """Remember the results of a function whose mode is unknown."""
        if not function.settled and len(self._results) < MAX_LEAVES:
            for leaf in self._leaves(result)[:MAX_LEAVES]:
                reference = _reference(leaf)
                if reference is not None:
                    self._results[id(leaf)] = reference, function

    # parts

    def _look_at(self, function: Compiled, arguments: Any) -> None:
        leaves = self._leaves(arguments)[:MAX_LEAVES]
        for leaf in leaves:
            reference, producer = self._results.get(id(leaf), (None, None))
            if producer is not None and reference is not None and reference() is leaf:
                producer.feeds = self._trains = True
        if not function.settled:
            function.sees(leaves, others_feed=self._trains)
            self._results = {key: one for key, one in self._results.items() if not one[1].settled}

    def _begin(self, mode: ModeKeys, start_ns: int) -> None:
        self._leads()
        self._mode = mode
        self._tracker.begin_step(start_ns, gradients=mode is ModeKeys.TRAIN, mode=mode)

    def _confirm(self, key: int) -> None:
        """Record the turn as a step if it has this function, which repeats: from its call on, without what prepared it."""
        calls, self._turn = list(self._turn or ()), None
        at = next((at for at, call in enumerate(calls) if id(call.function) == key), None)
        if at is not None:
            function = calls[at].function
            self._begin(function.mode if function else ModeKeys.TRAIN, calls[at].start_ns)
            for call in calls[at:]:
                phase = RESULTS if call.function is None else COMPILED_STEP
                self._tracker.call_ended(call.name, call.start_ns, call.end_ns, phase)


def _reference(leaf: Any) -> Any:
    """Return a weak reference; None for what has none, such as numbers."""
    try:
        return weakref.ref(leaf)
    except TypeError:
        return None


def _alive(references: list[Any]) -> list[Any]:
    return [None if one is None else one() for one in references]
