"""Rest: a run of steps whose phases are not recorded, of which the hook keeps only a few times, such as their ends.

Code that runs once a step runs with cold caches: a few lines at each phase cost 2 to 10 % of steps below a millisecond.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise, zip_longest
from threading import get_ident
from time import perf_counter_ns, thread_time_ns
from types import FrameType
from typing import ClassVar, TypeAlias

import attrs

REST_NS = 1_000_000_000  # after which the steps of a rest are recorded: pages are live, and a job may be killed
COMPARED = 256  # comparisons that are kept
ENOUGH = 16  # comparisons
COMPARED_RESTS = 8  # of so many, the last step of one is compared once there are enough: a rest costs time to begin
ENDLESS = 2**62  # nanoseconds, or a number that is not reached
LONGEST_EVALUATION_NS = 5_000_000_000  # in a rest, which records it only when it ends
EVALUATION_US = 16.0  # that an evaluation in a rest costs, as measured with a model of seven layers
MIN_WAIT_NS = 20_000  # a shorter wait for results found them ready
Wait: TypeAlias = tuple[str, int, int]  # for results of compiled functions: name, start and end


class Comparison:
    """Cost of steps that are observed: the CPU time of the training thread in one, less that in the step of a rest before.

    Both run in turn and with the caches as the training leaves them, which the clock of a callback itself does not see.
    What a script does now and then lies in either of them as often, so that a middle of many differences is without it.

    Attributes:
        ns: of the latest such steps.
    """

    def __init__(self, clock: Callable[[], int] = thread_time_ns) -> None:
        self.ns: deque[int] = deque(maxlen=COMPARED)
        self.clock = clock
        self._since = 0  # when the rest began
        self._before: tuple[int, int, int] | None = None  # a rest of one step: its number, its end, what it took

    def is_due(self, rests: int) -> bool:
        """Return whether the observed step after this many rests is to be compared."""
        return len(self.ns) < ENOUGH or rests % COMPARED_RESTS == 0

    def interrupted(self) -> None:
        """Forget the rest before: the next step has an evaluation before it."""
        self._before = None

    def rest_begins(self, step: int) -> None:
        """Compare the step since the last rest, if it was a single one, and `step` is that one."""
        self._since = now = self.clock()
        before, self._before = self._before, None
        if before is not None and step - before[0] == 1:
            self.ns.append(now - before[1] - before[2])

    def rest_ended(self, step: int, count: int, at: int) -> None:
        """Remember a rest of a single step, which ended by this thread's CPU time."""
        self._before = (step, at, at - self._since) if count == 1 else None


@attrs.define(eq=False)
class Rest:
    """The moments that are noted meanwhile, on the training thread.

    Attributes:
        optimizer: id of the optimizer that steps once in each step of the loop.
        steps: number of its steps after which the rest ends.
        stream: the loader that the loop reads, or None.
        awake: called when the rest ends: from then on, the adapter calls the tracker at each boundary again.
        phase_of: returns the phase that a stack is in, or "" if it is in none.
        gap_ns: usual time from the end of a step, or the arrival of its batch, to its first forward.
        ends: the end of the step before the rest, and those of the optimizer's steps since.
        arrivals: when batches arrived.
        since_ns: when a model was switched to eval() mode that has not been switched back, or 0.
        evaluations: when others were, and when they were switched back.
    """

    optimizer: int
    steps: int
    stream: object | None
    awake: Callable[[], None]
    phase_of: Callable[[Sequence[FrameType]], str]
    gap_ns: int
    ends: list[int]
    arrivals: list[int] = attrs.field(factory=list)
    since_ns: int = attrs.field(default=0, kw_only=True)
    evaluations: list[tuple[int, int]] = attrs.field(factory=list, kw_only=True)
    cost_us: ClassVar[float] = 2.0  # of a step, as measured in loops of half a millisecond

    @property
    def counted(self) -> int:
        """Steps so far."""
        return len(self.ends) - 1

    @property
    def evaluates(self) -> bool:
        """True from a model's switch to eval() mode until it is switched back, or trains without that."""
        return self.since_ns > self.ends[-1]

    def evaluation_begins(self, now_ns: int) -> None:
        """Note that a model was switched to eval() mode, unless another one was before."""
        if not self.evaluates:
            self.since_ns = now_ns

    def evaluation_ends(self, now_ns: int) -> None:
        """Note that it was switched back."""
        if self.evaluates:
            self.evaluations.append((self.since_ns, now_ns))
        self.since_ns = 0

    @property
    def began_ns(self) -> int:
        """Start of the running step: the end of the one before, or of the evaluation after that one."""
        return max(self.ends[-1], self.evaluations[-1][1]) if self.evaluations else self.ends[-1]

    def phase(self, stack: Sequence[FrameType]) -> str:
        """Return the phase of a sample; without one on the stack, the time since decides."""
        if self.evaluates:
            return "evaluation"
        waited_ns = perf_counter_ns() - max([self.began_ns, *self.arrivals[-1:]])
        return self.phase_of(stack) or ("outside" if waited_ns < self.gap_ns else "between")

    def waiting(self) -> int | None:
        """Return when the batch arrived that the running step has taken, or None, and leave its step to the tracker."""
        return self.arrivals.pop() if self.arrivals and self.arrivals[-1] > self.ends[-1] else None

    def spans(self) -> list[tuple[int, int]]:
        """Return start and end of each step.

        With a loader, a step begins with the arrival of its batch and ends with the optimizer's last step before the
        next one; without any, the two batches were accumulated, and it ends there.  Without a loader, each of the
        optimizer's steps ends a step, which begins with the end of the one before.
        """
        if self.stream is None:
            return list(pairwise(self.ends))
        found, ends, at = [], self.ends, 1
        for start, limit in pairwise([*self.arrivals, max([ends[-1], *self.arrivals[-1:]]) + 1]):
            end = limit
            while at < len(ends) and ends[at] < limit:
                end, at = ends[at], at + 1
            found.append((start, end))
        return found

    def steps_and_evaluations(self, now_ns: int) -> list[tuple[int, int, bool]]:
        """Return start and end of each step and of each evaluation between steps, in order, and whether it is a step.

        Without a loader, a step begins after the evaluation.  With one, what is evaluated between the arrival of a batch
        and the optimizer's step is part of the step.
        """
        evaluations = [*self.evaluations, (self.since_ns, now_ns)] if self.evaluates else self.evaluations
        found, at = [], 0
        for start, end in self.spans():
            begins = start
            while at < len(evaluations) and evaluations[at][0] < end:
                since, until = evaluations[at]
                at += 1
                if self.stream is None:
                    begins = until
                if self.stream is None or since < start:
                    found.append((since, until, False))
            found.append((begins, end, True))
        return [*found, *((since, until, False) for since, until in evaluations[at:])]


@attrs.define(eq=False)
class CallRest(Rest):
    """The same of a loop that calls compiled functions, and waits for their results in each step.

    A step begins with a call of one of these functions; `ends` are these moments.

    Attributes:
        until: time at which the rest ends, with the start of the next step.
        thread: the one that trains.
        waits: for results, in the order of their ends; one may contain those before it.
    """

    until: int = attrs.field(kw_only=True)
    thread: int = attrs.field(factory=get_ident, kw_only=True)
    waits: list[Wait] = attrs.field(factory=list, kw_only=True)
    cost_us: ClassVar[float] = 6.0

    @property
    def counted(self) -> int:
        """Steps so far, the running one included."""
        return len(self.ends)

    def turns(self, now_ns: int) -> list[tuple[int, int, list[Wait]]]:
        """Return start and end of each step, the running one included, and its waits."""
        found, waits, at, count = [], self.waits, 0, len(self.waits)
        for start, limit in pairwise([*self.ends, now_ns]):
            end, kept = limit, list[Wait]()
            while at < count and waits[at][1] < limit:
                end = waits[at][2]
                while kept and kept[-1][1] >= waits[at][1]:  # inside this one
                    kept.pop()
                if end - waits[at][1] >= MIN_WAIT_NS:
                    kept.append(waits[at])
                at += 1
            found.append((start, end, kept))
        return found


@attrs.define(eq=False)
class MarkedRest(CallRest):
    """The same of a loop whose steps are marked; `ends` are their starts.

    Attributes:
        finished: when they ended; the running step has not.
    """

    finished: list[int] = attrs.field(factory=list, kw_only=True)
    cost_us: ClassVar[float] = 30.0  # of which 24 are the stopwatch's operators, on TensorFlow's threads

    @property
    def is_open(self) -> bool:
        """True while a step runs."""
        return len(self.ends) > len(self.finished)

    def phase(self, stack: Sequence[FrameType]) -> str:
        """Return the phase of a sample."""
        return self.phase_of(stack) or ("between" if self.is_open else "outside")

    def turns(self, now_ns: int) -> list[tuple[int, int, list[Wait]]]:
        """Return start and end of each step."""
        return [(start, end, []) for start, end in zip_longest(self.ends, self.finished, fillvalue=now_ns)]
