"""Step tracking: find the steps in a sequence of fetches, forwards, backwards and optimizer steps, and record the phases.

Times are `perf_counter_ns`.  Everything here runs on the training thread, in the middle of a step: no locks, no
blocking calls, and no work that grows with the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from types import FrameType
from typing import Any

from sm_profiler.formats.event_names import BACKWARD, COMPILED_STEP, DATALOADER_WAIT, FORWARD, OPTIMIZER, RESULTS
from sm_profiler.formats.trace_writer import Span
from sm_profiler.hook.modes import STEP, ModeKeys
from sm_profiler.hook.rest import (
    EVALUATION_US,
    LONGEST_EVALUATION_NS,
    REST_NS,
    CallRest,
    Comparison,
    MarkedRest,
    Rest,
)

_TRAIN, _EVAL = ModeKeys.TRAIN, ModeKeys.EVAL

UNUSED = 2  # batches without a forward: fetched ahead, or consumed by an unknown model
SCRIPT = "script"  # owner of steps that the script marks
JOINED = 8  # models that run without gradients in one step of a loop without a loader
MANY = 64  # backward passes without an optimizer's step, or forwards without a backward: none will follow
# The hook measures its own time in every 19th step.  Phases may be those of every 3rd, 7th … 1023rd step, which has no factor
# in common with that: 17 divides 255, and then all of those were measured.
METER_EVERY = 19
NEVER = -2  # no training step has this number
METER_MAX_NS = 200_000  # a callback that took longer was preempted
REGULAR = 8  # training steps in a row, each with one step of the same optimizer, after which the hook may rest
AGAIN = 2  # the same after a rest that ended early
# Arguments of a step whose record its adapter completes on the recorder's thread with the wait at its start; the second
# those of a step whose phases are not recorded.
WAITED: dict[str, Any] = {}
WAITED_UNRECORDED: dict[str, Any] = {}


class StepObserver:
    """Receives what a tracker finds; all methods run on the training thread."""

    def step_began(self, step: int, mode: ModeKeys) -> None:
        """A step began, and its mode is not settled."""

    def step_ended(self) -> None:
        """The open step ended; called only while `StepTracker.reports_step_ends`."""

    def step_metered(self) -> None:
        """A step began in which the hook's own time is measured."""

    def forward_ended(self) -> None:
        """An outermost forward ended; called only while `StepTracker.reports_forward_ends`."""

    def loader_began(self, now_ns: int) -> None:
        """A new loader iterator gave its first batch."""

    def batches_unused(self) -> None:
        """A loader gave batches, and no forward followed."""


class Stream:
    """Batches of one loader iterator: how many were fetched and have not started a step yet.

    `reader()` returns the iterator, or None once the loop has dropped it.
    """

    __slots__ = ("burst", "credits", "fetches", "name", "reader")

    def __init__(self, name: str, reader: Callable[[], Any]) -> None:
        self.name = name
        self.reader = reader
        self.credits = 0
        self.burst = 0  # batches fetched in a row that have not started a step yet
        self.fetches = 0


class StepTracker:
    """Finds steps, and passes records of steps and phases to `append`.

    Attributes:
        append: takes each record; replaced by the bound method of the queue once recording starts.
        settled: mode whose steps need not be reported to the observer; None reports the next step of any mode.
        every: phases are recorded for every n-th step.
        step_start: start of the latest step.
        metering: the hook's own time is measured in this step.
        own_ns: own time in metered steps.
        manual: steps are marked by their owner, and not found.
        owner: who marks them: the script, the name of a framework, or empty.
        batches: batches in the open step: more than one if its owner runs several at once.
        forced_mode: mode set by the script; overrides the one that gradients indicate.
        has_optimizer: the script created an optimizer.  Without one, parameters are updated by hand after each backward.
        watches_updates: nothing but forwards was seen, so that `updated` decides where a step begins.
        updated: the parameters of the model that runs next have changed since its last forward.
        compiles: parts of the loop run compiled, so that optimizers may be invisible.
        waits_later: the open step's record lacks the wait at its start, which an adapter adds later.
        failed: number of the latest step that its owner marked and in which it raised.
        rest: the run of steps of which nothing is reported but what counts them, or None.
        rested: training steps so far of which nothing else was reported.
        rests_us: what these cost.
        compared: what the other steps between rests cost.
        rests: the observer needs no more of the steps of the settled mode.
        evaluates_after: number of the training step after which a model was switched to eval() mode and not back.
    """

    def __init__(self, append: Callable[[Span], None], observer: StepObserver | None = None) -> None:
        self._observer = observer or StepObserver()
        self.reports_step_ends = False
        self.reports_forward_ends = False
        self.forced_mode: ModeKeys | None = None
        self.manual = False
        self.owner = ""
        self.has_optimizer = False
        self.rest: Rest | None = None
        self.reset(append)

    @property
    def train_number(self) -> int:
        """Number of the latest training step, also during an evaluation."""
        if self.rest is not None:
            return self.number + self.rest.counted
        return self.number if self.mode is ModeKeys.TRAIN else self.counts[ModeKeys.TRAIN] - 1

    @property
    def completed(self) -> int:
        """Number of training steps so far, without the latest if it has not come as far as those before it."""
        count = self.train_number + 1
        if self.mode is not _TRAIN or self.rest is not None or count < 1:
            return max(count, 0)
        if self.manual or not self.is_open:
            return count - (self.failed == self.number)
        updates = self.has_optimizer or not self.watches_updates
        began_only = updates and not (self._saw_backward or self._saw_optimizer)
        lacks_update = self._regular >= REGULAR and not self._updates
        return count - bool(self.forward_key or self.in_backward or self.optimizer or began_only or lacks_update)

    def reset(self, append: Callable[[Span], None]) -> None:
        """Start over, in a forked child."""
        if self.rest is not None:
            self.rest.awake()
        self.rest, self.rested, self.rests_us, self.compared = None, 0, 0.0, Comparison()
        self.append = append
        self.settled: ModeKeys | None = None
        self.every = 1
        self.keep_phases = self.rests = True
        self.evaluates_after = NEVER
        self._evaluates_since = 0  # time of that switch
        self._switches_back = False  # after the latest evaluation, soon and before the next training step
        self._in_eval_mode = False  # the latest step that is no training step began after such a switch
        self.metering = False
        self.own_ns = 0
        self.global_step = -1
        self._ahead = 1  # batches of the latest step
        self.counts = dict.fromkeys(ModeKeys, 0)
        self.mode = ModeKeys.TRAIN
        self.number = -1
        self.failed = NEVER
        self.is_open = False
        self.batches = 1
        self.streams: list[Stream] = []
        self.in_fetch = 0
        self.in_backward = 0
        self.optimizer = 0  # id of the outermost optimizer whose step is running, or 0
        self.forward_key = 0  # id of the outermost module that is running, or 0
        self.in_compiled = False  # a compiled function runs, or the loop waits for its results
        self._ever_forward = False
        self._ever_optimizer = False
        self._backwards = self._forwards = 0  # counted up to MANY
        self.watches_updates = True
        self.updated = False
        self.compiles = False
        self.waits_later = False
        self._updates = self._updater = 0  # optimizer steps that ended in the open step, and whose the last one was
        self._regular = 0
        self._gap_ns = 0  # from the end of a step, or the arrival of its batch, to its first forward
        self._forward_start = 0
        self._backward_start = 0
        self._optimizer_start = 0  # or end of the last phase inside the optimizer's step
        self._optimizer_name = ""
        self._pieces = False  # the optimizer's own work follows
        self.step_start = 0
        self._last_end = 0
        self._after_fetch = False  # a batch was requested since the last step began
        self._fetch_end = 0
        self._after_optimizer = True
        self._saw_backward = False
        self._saw_optimizer = False
        self._with_gradients = True
        self._first_key = 0
        self._one_root = True
        self._joined: tuple[int, ...] = ()  # modules that ran without gradients in the open step, after its first

    def join_loop(self) -> None:
        """Begin in the middle of a loop, perhaps of a step: the first step is the next one that begins."""
        self._after_optimizer = self.keep_phases = False

    # who marks the steps

    def claim(self, owner: str) -> bool:
        """Let `owner` mark the steps from now on; return False if the script marks them itself."""
        self.end_rest()
        if self.owner == SCRIPT and owner != SCRIPT:
            return False
        if self.owner != owner:
            if not self.manual and self._with_gradients and not (self._saw_backward or self._saw_optimizer):
                self.cancel_step()  # the model was called once to be built
            self.end_step()
            self.owner, self.manual = owner, True
        return True

    def release(self, owner: str) -> None:
        """Find the steps again, if they are the owner's."""
        if self.owner == owner:
            self.end_step()
            self.owner, self.manual = "", False
            for stream in self.streams:
                stream.credits = stream.burst = 0
            self._after_optimizer, self._after_fetch = True, False

    def recount(self, batches: int) -> None:
        """Correct the number of batches of the latest step."""
        change = batches - self.batches
        if change:
            self.batches = self._ahead = batches
            self.counts[self.mode] += change

    def consume(self, batches: int) -> None:
        """Note that a step which its owner marks takes batches from the loader."""
        if self.streams:
            stream = self.streams[-1]
            stream.credits = max(stream.credits - batches, 0)
            stream.burst = 0

    def waited(self, name: str, wait_ns: int) -> None:
        """Note that the open step began with waiting for its batches: the wait comes before the step."""
        if wait_ns > 0 and self.is_open:
            start, self.step_start = self.step_start, self.step_start + wait_ns
            self._last_end = max(self._last_end, self.step_start)
            if self.keep_phases:
                self.append((DATALOADER_WAIT, name, start, self.step_start, self.number, None))

    @property
    def latest_number(self) -> int:
        """Number of the latest step within its mode."""
        return self.number if self.rest is None else self.train_number

    # for other threads

    @property
    def after_last_phase(self) -> bool:
        """True once the open step's optimizer has stepped: usually nothing of the step follows."""
        return self._saw_optimizer and not self.optimizer

    @property
    def in_optimizer(self) -> bool:
        """True while an optimizer's own work runs: not in its closure, before the step's forward or its backward."""
        return bool(self.optimizer) and self._pieces and (self.is_open or not self._after_fetch)

    @property
    def batch_waits(self) -> bool:
        """True if a batch has arrived, and no step has begun since."""
        return self._after_fetch

    @property
    def saw_phases(self) -> bool:
        """True if a phase of the open step was recorded, or is about to be."""
        return self._last_end > self.step_start

    @property
    def progress(self) -> tuple[int, int]:
        """The latest step, and the time of the latest event in it; for other threads."""
        step, start_ns = self.latest
        return step, max(start_ns, self._last_end, self._fetch_end)

    @property
    def latest(self) -> tuple[int, int]:
        """The latest step and its start; during a rest, a step begins with the end of the one before."""
        rest = self.rest
        return (
            (self.global_step, self.step_start) if rest is None else (self.global_step + len(rest.ends), rest.began_ns)
        )

    # fetches

    def fetch_begins(self) -> None:
        """Note that the loop requests a batch from a loader."""
        if self.rest is not None:
            self.end_rest()
        # A fetch ends the step, unless it comes between a forward and its backward, as in some prefetchers.
        if self.is_open and not self.manual and (self._saw_backward or self._saw_optimizer or not self._with_gradients):
            self.is_open = False  # inlined end_step(): the call would cost half a microsecond
            name = STEP[self.mode]
            self.append((name, name, self.step_start, self._last_end, self.number, None))
            if self.reports_step_ends:
                self._observer.step_ended()
        self.in_fetch += 1
        self.optimizer = 0  # one that raised did not report its end

    def fetch_ends(self, stream: Stream, start_ns: int, end_ns: int, *, got: bool, gradients: bool) -> None:
        """Note that a batch arrived, or that the loader is exhausted (`got` is false)."""
        self.in_fetch -= 1
        streams = self.streams
        if not streams or streams[-1] is not stream:
            if stream in streams:
                streams.remove(stream)
            else:
                self._observer.loader_began(end_ns)
            streams.append(stream)
        if not self._after_fetch:
            stream.burst = 0
        stream.burst += 1
        if got:
            stream.credits += 1
            stream.fetches += 1
            if stream.fetches == stream.credits == UNUSED:
                self._observer.batches_unused()
            if self.every == 1 or (self.global_step + 1) % self.every == 0:
                mode = self.forced_mode or (_TRAIN if gradients else _EVAL)
                inside = self.manual and self.is_open and self._last_end == self.step_start
                number = self.number if inside else self.counts[mode] + (0 if self.manual else stream.credits - 1)
                self.append((DATALOADER_WAIT, stream.name, start_ns, end_ns, number, None))
                if inside:  # a marked step that begins with waiting for its batch: the wait comes before it
                    self.step_start = self._last_end = end_ns
        elif stream.credits == 0:
            streams.remove(stream)
        self._after_fetch = stream.credits > 0
        self._fetch_end = end_ns

    def may_hand_on(self, stream: Stream | None) -> bool:
        """Return whether a fetch on another thread may be the loop's: of its loader, and between two steps."""
        return stream in self.streams and not (self.in_backward or self.optimizer or self.forward_key)

    def fetch_failed(self) -> None:
        """Note that the loader raised an error."""
        self.in_fetch -= 1

    # phases

    def forward_begins(self, key: int, start_ns: int, *, gradients: bool) -> None:
        """Note the call of an outermost module."""
        if not self.manual and self._begins_step(key, gradients=gradients):
            self.begin_step(start_ns, gradients=gradients)
            self._first_key = key
        elif self.number < 0:  # before the first step, in the middle of another
            self._first_key = key
        elif key != self._first_key:
            self._one_root = False
        if self.optimizer:  # it calls the model itself
            self._optimizer_piece(start_ns)
        self.forward_key = key
        self._ever_forward = True
        self._forward_start = start_ns

    def forward_ends(self, name: str, end_ns: int) -> None:
        """Note that it returned, or raised."""
        self.forward_key = 0
        self._last_end = self._optimizer_start = end_ns
        if self.keep_phases:
            self.append((FORWARD, name, self._forward_start, end_ns, self.number, None))
        if self.reports_forward_ends:
            self._observer.forward_ended()

    def backward_begins(self, start_ns: int) -> None:
        """Note the start of a backward pass; nested ones are part of the outermost."""
        self.in_backward += 1
        if self.in_backward == 1:
            self._backward_start = start_ns
            self._saw_backward = True
            self.watches_updates = False
            self._pieces = False
            if self._after_fetch or self._after_optimizer:
                self._begin_unseen(start_ns)
            if self.is_open and not self._with_gradients and self.forced_mode is None:
                self._is_training()

    def backward_ends(self, end_ns: int) -> None:
        """Note that it returned, or raised."""
        self.in_backward -= 1
        if self.in_backward == 0:
            self._last_end = self._optimizer_start = end_ns
            self._pieces = True
            if not self._ever_optimizer and (self.compiles or self._is_by_hand()):  # compiled, it cannot be seen
                self._after_optimizer = True
            if self.keep_phases:
                self.append((BACKWARD, "backward", self._backward_start, end_ns, self.number, None))

    def optimizer_begins(self, key: int, start_ns: int, name: str = "") -> None:
        """Note the start of an optimizer's step; nested optimizers are part of the outermost.

        Forwards and backwards inside it (a closure: LBFGS, Lightning) are separate phases; the optimizer's own phase
        is the time after each backward.
        """
        self.watches_updates = False
        if not self.optimizer or self.optimizer == key:  # the same again: its last step raised
            self.optimizer = key
            self._optimizer_start = start_ns
            self._optimizer_name = name
            self._pieces = self._saw_optimizer = True

    def optimizer_ends(self, key: int, name: str, end_ns: int) -> None:
        """Note the end of an optimizer's step."""
        if self.optimizer == key:
            self.optimizer = 0
            if not self._saw_backward:
                self._begin_unseen(self._optimizer_start)
            self._last_end = end_ns
            self._after_optimizer = True
            self._ever_optimizer = True
            self._updates += 1
            if key != self._updater:
                self._updater, self._regular = key, 0
            if self.keep_phases:
                self.append((OPTIMIZER, name, self._optimizer_start, end_ns, self.number, None))

    def _optimizer_piece(self, end_ns: int) -> None:
        """Record the optimizer's work up to a forward inside its step; before the first forward the step has not begun."""
        if self._pieces and self.keep_phases and self.is_open and self._optimizer_start >= self.step_start:
            self.append((OPTIMIZER, self._optimizer_name, self._optimizer_start, end_ns, self.number, None))
        self._pieces = False

    # evaluations, of models that are switched to eval() mode for them

    def evaluation_begins(self, now_ns: int, *, switches: bool) -> None:
        """Note a call of `model.eval()`: a rest ends unless a call of `model.train()` is expected.

        Args:
            now_ns: its start.
            switches: the model was in training mode, and a step has begun.
        """
        rest = self.rest
        if type(rest) is not Rest or not (self._switches_back if switches else rest.evaluates):
            self.end_rest()
        elif switches:
            rest.evaluation_begins(now_ns)
        if switches:
            self.compared.interrupted()
            self.evaluates_after, self._evaluates_since = self.train_number, now_ns

    def evaluation_ends(self, now_ns: int) -> None:
        """Note the call of `train()` that switches the model back."""
        is_short = now_ns - self._evaluates_since < LONGEST_EVALUATION_NS
        self._switches_back = is_short and self.evaluates_after == self.train_number
        self.evaluates_after = NEVER
        if self.rest is not None:
            self.rest.evaluation_ends(now_ns)

    # compiled functions, of frameworks whose phases cannot be seen

    @property
    def reads_loader(self) -> bool:
        """True while the loop reads batches from a loader."""
        return self._stream() is not None

    def begins_call(self, *, again: bool) -> bool:
        """Return whether the outermost call of a compiled function begins a step, and take the step's batch.

        Args:
            again: this function was called in this turn of the loop already.
        """
        stream = self._stream()
        if stream is None:
            return again
        if stream.credits == 0 or not (self._after_fetch or again):
            return False
        stream.credits -= 1
        stream.burst -= 1
        self._after_fetch = False
        return True

    def call_ended(self, name: str, start_ns: int, end_ns: int, phase: str = COMPILED_STEP) -> None:
        """Note the end of such a call, or (phases RESULTS and QUEUED) of waiting for what earlier steps compute."""
        self._last_end = end_ns
        self._saw_optimizer = True  # so that the next fetch ends the step
        if self.number >= 0 and (self.keep_phases or phase is not COMPILED_STEP):
            self.append((phase, name, start_ns, end_ns, self.number, None))

    def call_trains(self) -> None:
        """Note that a function which is running in the open step computes gradients."""
        if self.is_open and not self._with_gradients and self.forced_mode is None:
            self._is_training()

    def call_begins(self, key: int, start_ns: int, *, trains: bool) -> None:
        """Note the call of a compiled function of which it is known whether it computes gradients."""
        loops = trains or self.reads_loader  # without a loader, a function that does not train is no evaluation
        if not self.manual and loops and self._begins_step(key, gradients=trains):
            self.begin_step(start_ns, gradients=trains)
            self._first_key = key

    def call_ends(self, name: str, start_ns: int, end_ns: int, *, trains: bool) -> None:
        """Note that it returned, or raised."""
        if self.is_open:
            if trains:  # one without gradients may have come first
                self.call_trains()
            self.call_ended(name, start_ns, end_ns)
        if self.is_open or self.number < 0:
            self._after_optimizer = self._after_optimizer or trains
            self._ever_optimizer = self._ever_optimizer or trains

    # steps

    def begin_step(self, start_ns: int, *, gradients: bool, mode: ModeKeys | None = None, batches: int = 1) -> None:
        """Begin a step; one that is open ends with its last phase.

        Args:
            start_ns: its start.
            gradients: it computes gradients.
            mode: its mode, if more is known of it than whether it computes gradients.
            batches: how many batches it runs; each has a step number of its own.
        """
        if self.is_open or self.rest is not None:
            self.end_step()
        if self.mode is _TRAIN:
            self._regular = self._regular + 1 if self._updates == 1 else 0
        elif self._updates or not self._in_eval_mode:
            self._regular = 0
        self._updates = 0
        self._gap_ns = start_ns - max(self._last_end, self._fetch_end)
        self.mode = mode = self.forced_mode or mode or (_TRAIN if gradients else _EVAL)
        self.global_step = step = self.global_step + self._ahead
        self.batches = self._ahead = batches
        counts = self.counts
        if mode is not _TRAIN:
            self._in_eval_mode = self.evaluates_after == counts[_TRAIN] - 1
        self.number = number = counts[mode]
        counts[mode] = number + batches
        keeps = step % self.every < batches
        if not (
            keeps or (gradients and self._with_gradients)
        ):  # forwards ahead of a step may be a part of it: keep both
            keeps = self.keep_phases if gradients else (step + 1) % self.every == 0
        self.keep_phases = keeps
        self.metering = metering = step % METER_EVERY < batches
        self._with_gradients = gradients
        self._after_fetch = self._saw_backward = self._saw_optimizer = False
        self._after_optimizer = self._after_optimizer and not gradients  # an evaluation in between leaves it set
        self._first_key, self._one_root, self._joined = 0, True, ()
        self.step_start = self._last_end = start_ns
        self.is_open = True
        if mode is not self.settled:
            self._observer.step_began(step, mode)
        if metering:
            self._observer.step_metered()

    def end_step(self, end_ns: int | None = None) -> None:
        """End the open step with its last phase, or at the given time."""
        self.end_rest()
        if self.is_open:
            self.is_open = False
            name = STEP[self.mode]
            args = {"batches": self.batches} if self.batches > 1 else None
            if self.waits_later:
                self.waits_later, args = False, WAITED if self.keep_phases else WAITED_UNRECORDED
            self.append((name, name, self.step_start, end_ns or self._last_end, self.number, args))
            if self.reports_step_ends:
                self._observer.step_ended()

    def hold_step(self, end_ns: int) -> Span:
        """End the open step, whose number of batches is not certain yet; return its record, which the caller appends."""
        held: list[Span] = []
        append, self.append = self.append, held.append
        try:
            self.end_step(end_ns)
        finally:
            self.append = append
        return held[0]

    def cancel_step(self) -> None:
        """Forget the open step: there was no batch for it."""
        self.end_rest()
        if self.is_open:
            self.is_open = False
            self.counts[self.mode] -= self.batches
            self._ahead = 0

    # rest: steps whose phases are not recorded, in a loop with one optimizer step in each, or with compiled functions

    def may_rest(self) -> bool:
        """Return whether nothing of the next steps must be reported; called at the end of an optimizer's step."""
        return (
            self._until_observed() > 0
            and self._regular >= REGULAR
            and self._updates == 1
            and not (self.streams and self.streams[-1].burst)  # several batches in a step
            and self._is_unwatched()
            and not (self.optimizer or self.in_backward)
        )

    def _is_unwatched(self) -> bool:
        return self.settled is _TRAIN and self.rests and not (self.manual or self.waits_later)

    def begin_rest(self, awake: Callable[[], None], phase_of: Callable[[Sequence[FrameType]], str]) -> Rest:
        """Let the open step end, and rest until the next one whose phases are recorded."""
        self.end_step()
        ends = [self._last_end]
        self.rest = rest = Rest(
            self._updater, self._until_observed(), self._stream(), awake, phase_of, self._gap_ns, ends
        )
        self.compared.rest_begins(self.global_step)
        return rest

    def begin_call_rest(
        self, start_ns: int, awake: Callable[[], None], phase_of: Callable[[Sequence[FrameType]], str]
    ) -> CallRest | None:
        """Rest from the call that begins now, and with it the next step, if nothing of this step must be reported."""
        at_once = self.is_open and self.mode is _TRAIN and not self.reads_loader
        if not (at_once and self._until_observed() and self._is_unwatched()):
            return None
        self.end_step()
        steps, until = self._until_observed(), start_ns + REST_NS
        self.rest = rest = CallRest(0, steps, None, awake, phase_of, 0, [start_ns], until=until)
        self.compared.rest_begins(self.global_step)
        return rest

    def begin_marked_rest(
        self, start_ns: int, awake: Callable[[], None], phase_of: Callable[[Sequence[FrameType]], str]
    ) -> MarkedRest | None:
        """Rest from the step that begins now, which its owner marks, if nothing of it must be reported.

        Its wait for a batch, and those of the steps after it, are added later.
        """
        is_same = self.mode is _TRAIN and self.forced_mode in (None, _TRAIN) and self.batches == self._ahead == 1
        if not is_same or self.is_open or self.rest is not None or self.streams:
            return None
        if not self._until_observed() or self.settled is not _TRAIN or not self.rests:
            return None
        self.keep_phases = self.metering = False
        steps, until = self._until_observed(), start_ns + REST_NS
        self.rest = rest = MarkedRest(0, steps, None, awake, phase_of, 0, [start_ns], until=until)
        self.compared.rest_begins(self.global_step)
        return rest

    def _until_observed(self) -> int:
        """Return the number of steps of the next rest: those before the next one whose phases are recorded.

        The last of them is a rest by itself if the step after it is to be compared with it.
        """
        rests, at = divmod(self.global_step, self.every)
        left = self.every - 1 - at
        return left - 1 if left > 1 and self.compared.is_due(rests) else left

    def end_rest(self, *, regular: bool = False) -> None:
        """Record the steps of the rest, if there is one; from here on, all is reported again.

        Args:
            regular: the loop is as before: it may rest again at once, and the caller awakes it otherwise.
        """
        rest = self.rest
        if rest is None:
            return
        began_ns, cpu_ns, rested, self.rest = perf_counter_ns(), self.compared.clock(), self.rested, None
        planned = regular
        try:
            if isinstance(rest, CallRest):
                planned = len(rest.ends) >= rest.steps or 0 < rest.until <= began_ns
                self._record_calls(rest, began_ns)
            else:
                self._record_rest(rest, began_ns)
                if not regular:
                    self._regular = REGULAR - AGAIN
        finally:  # an exception of the script may interrupt it
            if not regular:
                rest.awake()
        self.rests_us += rest.cost_us * (self.rested - rested) + EVALUATION_US * len(rest.evaluations)
        if planned and not rest.evaluations:  # what ends it otherwise, such as the end of an epoch, also takes time
            self.compared.rest_ended(self.global_step, self.rested - rested, cpu_ns)
        self.own_ns += min(perf_counter_ns() - began_ns, METER_MAX_NS) // METER_EVERY

    def _record_rest(self, rest: Rest, now_ns: int) -> None:
        arrived_ns, name, evaluation = rest.waiting(), STEP[_TRAIN], STEP[_EVAL]
        if arrived_ns is not None and isinstance(rest.stream, Stream):
            self._fetch_end, self._after_fetch = arrived_ns, True
            rest.stream.credits += 1
        append, counts, before = self.append, self.counts, self.number
        for start, end, trains in rest.steps_and_evaluations(now_ns):
            if trains:
                self.number += 1
                self.step_start = start
                append((name, name, start, end, self.number, None))
            else:  # one step, which does not count for the interval of observed ones
                append((evaluation, evaluation, start, end, counts[_EVAL], None))
                counts[_EVAL] += 1
            self._last_end = end
        count = self.number - before
        counts[_TRAIN] += count
        self.global_step += count
        self.rested += count
        if rest.evaluates:
            self.evaluates_after = self.number

    def _record_calls(self, rest: CallRest, now_ns: int) -> None:
        """Record the steps of a rest; the last one is open from here on, unless its owner has marked its end."""
        turns, name, append = rest.turns(now_ns), STEP[_TRAIN], self.append
        is_marked = isinstance(rest, MarkedRest)
        args = WAITED_UNRECORDED if is_marked else None
        for number, (start, end, waits) in enumerate(turns, self.number + 1):
            for what, wait_ns, waited_ns in waits:
                append((RESULTS, what, wait_ns, waited_ns, number, None))
            if number < self.number + len(turns):
                append((name, name, start, end, number, args))
        self.step_start, self._last_end, _ = turns[-1]
        self.number += len(turns)
        self.counts[_TRAIN] = self.number + 1
        self.global_step += len(turns)
        self.rested += len(turns)
        self.is_open, self._saw_optimizer, self.keep_phases, self.metering = True, not is_marked, False, False
        self.waits_later = is_marked
        if isinstance(rest, MarkedRest) and not rest.is_open:
            self.end_step(self._last_end)

    def _is_training(self) -> None:
        """Count the open step as training: re-entrant checkpointing disables gradients in the forward."""
        self.counts[self.mode] -= 1
        self._with_gradients, self.mode = True, ModeKeys.TRAIN
        self.number = self.counts[ModeKeys.TRAIN]
        self.counts[ModeKeys.TRAIN] += 1

    def _stream(self) -> Stream | None:
        """Return the loader that the loop currently reads from, or None."""
        while self.streams:
            if self.streams[-1].reader() is not None:
                return self.streams[-1]
            self.streams.pop()
        return None

    def _begins_step(self, key: int, *, gradients: bool) -> bool:
        if self.in_backward:
            return False
        streams = self.streams
        stream = streams[-1] if streams and streams[-1].reader() is not None else self._stream()
        if stream is None:  # a loop without a loader
            begins = self._after_optimizer or (self.watches_updates and self._is_updated(key))
            return begins if gradients else not self._joins(key)
        if stream.credits == 0:
            return False
        if self._after_fetch:
            stream.credits -= 1
            stream.burst -= 1
            return True
        # Several batches were fetched at once.  If the same model runs again after a backward and before any optimizer
        # step, it is the next micro-batch; another model, or the same one after it, is part of this step (GANs).
        if (
            stream.burst > 0
            and self._saw_backward
            and not self._saw_optimizer
            and self._one_root
            and key == self._first_key
        ):
            stream.credits -= 1
            stream.burst -= 1
            return True
        return False

    def _joins(self, key: int) -> bool:
        """Return whether a forward without gradients is part of the open step, in a loop without a loader.

        It is if this module has not run yet: a target network before the backward, or actor and critic one by one.
        """
        if not self.is_open or self._saw_backward or key in self._joined or len(self._joined) == JOINED:
            return False
        if key == self._first_key and not self._with_gradients:
            return False
        self._joined += (key,)
        return True

    def _is_by_hand(self) -> bool:
        """Return whether the script updates its parameters without an optimizer."""
        self._backwards = min(self._backwards + 1, MANY)
        return not self.has_optimizer or self._backwards == MANY

    def _is_updated(self, key: int) -> bool:
        """Return whether a forward begins a step in a loop of which only forwards are seen: gradients are functions."""
        if key == self._first_key:
            self._forwards = min(self._forwards + 1, MANY)
        updated = self.updated and not self.has_optimizer  # with one, they change for an inner loop: meta-learning
        return key == self._first_key and (updated or self._forwards == MANY)

    def _begin_unseen(self, start_ns: int) -> None:
        """Begin the step of a forward that was invisible because it ran inside a compiled region."""
        if self.manual or self.in_fetch:
            return
        stream = self._stream()
        if stream is None:
            if self._after_optimizer and not (self.is_open and self._ever_forward):
                self._begin_keeping(self._last_end if self.is_open else start_ns)
        elif stream.credits and self._after_fetch:
            stream.credits -= 1
            stream.burst -= 1
            self._begin_keeping(self._fetch_end)

    def _begin_keeping(self, start_ns: int) -> None:
        saw_backward, saw_optimizer = self._saw_backward, self._saw_optimizer
        self.begin_step(start_ns, gradients=True)
        self._saw_backward, self._saw_optimizer = saw_backward, saw_optimizer
