"""What a step is: told of fetches, forwards, backwards and optimizer steps, it finds the steps and records the phases.

Times are `perf_counter_ns`.  Everything here runs on the training thread, in the middle of a step: no locks, no calls
that wait, nothing that grows with the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from sm_profiler.formats.event_names import BACKWARD, DATALOADER_WAIT, FORWARD, OPTIMIZER
from sm_profiler.hook.modes import STEP, ModeKeys

# A span as the training thread notes it, turned into an event elsewhere: phase, name, start and end (`perf_counter_ns`),
# number of the step within its mode or -1, further arguments or None.  A plain tuple: it is made six times a step.
Record: TypeAlias = tuple[str, str, int, int, int, dict[str, Any] | None]


_TRAIN, _EVAL = ModeKeys.TRAIN, ModeKeys.EVAL

UNUSED = 2  # batches that came without a forward: fetched ahead, or used by a model that is not known
METER_EVERY = 16  # the hook takes its own time in every 16th step
METER_MOST_NS = 200_000  # a callback that took longer was put aside by the operating system in the middle


class Stream:
    """The batches of one loader iterator: how many were fetched and have not begun a step yet.

    `reader()` is the iterator, or None when the loop has left it.
    """

    __slots__ = ("burst", "credits", "fetches", "name", "reader")

    def __init__(self, name: str, reader: Callable[[], Any]) -> None:
        self.name = name
        self.reader = reader
        self.credits = 0
        self.burst = 0  # batches asked for in a row, that have not begun a step yet
        self.fetches = 0


class StepTracker:
    """Finds steps in what it is told, and hands records to `append`.

    `on_step(global_step, mode)` is called when a step begins, before its first phase, unless `settled` is this mode.
    """

    def __init__(self, append: Callable[[Record], None], on_step: Callable[[int, ModeKeys], None]) -> None:
        self._on_step = on_step
        self.forced_mode: ModeKeys | None = None
        self.on_forward_end: Callable[[], None] | None = None
        self.on_iterator: Callable[[int], None] | None = None  # a loader's new iterator gives its first batch now
        self.on_unused: Callable[[], None] | None = None  # it gave batches, and no forward was seen
        self.manual = False  # the script marks its own steps
        self.reset(append)

    def reset(self, append: Callable[[Record], None]) -> None:
        """As new: for a forked child, which has made no step yet."""
        self.append = append  # replaced by the queue's own method: one call less a record
        # Steps of this mode begin unsaid, until somebody who has to know of one sets None.
        self.settled: ModeKeys | None = None
        self.every = 1  # phases are recorded for every n-th step
        self.keep_phases = True
        self.metering = False  # the hook's own time is taken in this step
        self.own_ns = 0  # own time of metered steps
        self.global_step = -1
        self.counts = dict.fromkeys(ModeKeys, 0)
        self.mode = ModeKeys.TRAIN
        self.number = -1
        self.is_open = False
        self.streams: list[Stream] = []
        self.in_fetch = 0
        self.in_backward = 0
        self.optimizer = 0  # id of the outermost optimizer whose step is running, 0 for none
        self.forward_key = 0  # id of the outermost module that is running, 0 for none
        self._forwards = 0
        self._optimizers = 0
        self.compiles = False  # parts of the loop run compiled
        self._forward_start = 0
        self._backward_start = 0
        self._optimizer_start = 0  # or where the last phase inside the optimizer's step ended
        self._optimizer_name = ""
        self._pieces = False  # what comes now is the optimizer's own work
        self._step_start = 0
        self._last_end = 0
        self._after_fetch = False  # a batch was asked for since the last step began
        self._fetch_end = 0
        self._after_optimizer = True
        self._saw_backward = False
        self._saw_optimizer = False
        self._with_gradients = True
        self._first_key = 0
        self._one_root = True

    # fetches

    def fetch_begins(self) -> None:
        """The loop asks a loader for a batch."""
        # A fetch ends the step, unless it stands between a forward and its backward (some prefetchers do that).
        if self.is_open and not self.manual and (self._saw_backward or self._saw_optimizer or not self._with_gradients):
            self.is_open = False  # as in end_step(); a call takes half a microsecond here
            name = STEP[self.mode]
            self.append((name, name, self._step_start, self._last_end, self.number, None))
        self.in_fetch += 1
        self.optimizer = 0  # one that raised said nothing when it left

    def fetch_ends(self, stream: Stream, start_ns: int, end_ns: int, *, got: bool, gradients: bool) -> None:
        """A batch came, or the loader had no more (`got` false)."""
        self.in_fetch -= 1
        streams = self.streams
        if not streams or streams[-1] is not stream:
            if stream in streams:
                streams.remove(stream)
            elif self.on_iterator is not None:
                self.on_iterator(end_ns)
            streams.append(stream)
        if not self._after_fetch:
            stream.burst = 0
        stream.burst += 1
        if got:
            stream.credits += 1
            stream.fetches += 1
            if stream.fetches == stream.credits == UNUSED and self.on_unused is not None:
                self.on_unused()
            if self.every == 1 or (self.global_step + 1) % self.every == 0:
                mode = self.forced_mode or (_TRAIN if gradients else _EVAL)
                number = self.counts[mode] + stream.credits - 1
                self.append((DATALOADER_WAIT, stream.name, start_ns, end_ns, number, None))
        elif stream.credits == 0:
            streams.remove(stream)
        self._after_fetch = stream.credits > 0
        self._fetch_end = end_ns

    def fetch_failed(self) -> None:
        """The loader raised something else than the end of its data."""
        self.in_fetch -= 1

    # phases

    def forward_begins(self, key: int, start_ns: int, *, gradients: bool) -> None:
        """An outermost module is called."""
        if not self.manual and self._begins_step(key, gradients=gradients):
            self.begin_step(start_ns, gradients=gradients)
            self._first_key = key
        elif key != self._first_key:
            self._one_root = False
        if self.optimizer:  # it calls the model itself
            self._optimizer_piece(start_ns)
        self.forward_key = key
        self._forwards += 1
        self._forward_start = start_ns

    def forward_ends(self, name: str, end_ns: int) -> None:
        """It returned, or raised."""
        self.forward_key = 0
        self._last_end = self._optimizer_start = end_ns
        if self.keep_phases:
            self.append((FORWARD, name, self._forward_start, end_ns, self.number, None))
        if self.on_forward_end is not None:
            self.on_forward_end()

    def backward_begins(self, start_ns: int) -> None:
        """`torch.autograd.backward` is called; calls within calls count as part of the outermost."""
        self.in_backward += 1
        if self.in_backward == 1:
            self._backward_start = start_ns
            self._saw_backward = True
            self._pieces = False
            if self._after_fetch or self._after_optimizer:
                self._begin_unseen(start_ns)
            if self.is_open and not self._with_gradients and self.forced_mode is None:
                self._is_training()

    def backward_ends(self, end_ns: int) -> None:
        """It returned, or raised."""
        self.in_backward -= 1
        if self.in_backward == 0:
            self._last_end = self._optimizer_start = end_ns
            self._pieces = True
            if self.compiles and not self._optimizers:  # the optimizer may be compiled, and cannot be seen
                self._after_optimizer = True
            if self.keep_phases:
                self.append((BACKWARD, "backward", self._backward_start, end_ns, self.number, None))

    def optimizer_begins(self, key: int, start_ns: int, name: str = "") -> None:
        """An optimizer's step begins; an optimizer within an optimizer counts as part of the outermost.

        Forwards and backwards inside it (a closure: LBFGS, Lightning) are phases of their own; the optimizer's is what
        lies after each backward.
        """
        if not self.optimizer or self.optimizer == key:  # which then raised the last time
            self.optimizer = key
            self._optimizer_start = start_ns
            self._optimizer_name = name
            self._pieces = self._saw_optimizer = True

    def optimizer_ends(self, key: int, name: str, end_ns: int) -> None:
        """An optimizer's step ends."""
        if self.optimizer == key:
            self.optimizer = 0
            if not self._saw_backward:
                self._begin_unseen(self._optimizer_start)
            self._last_end = end_ns
            self._after_optimizer = True
            self._optimizers += 1
            if self.keep_phases:
                self.append((OPTIMIZER, name, self._optimizer_start, end_ns, self.number, None))

    def _optimizer_piece(self, end_ns: int) -> None:
        """A forward begins inside an optimizer's step; before the first one the step has not begun."""
        if self._pieces and self.keep_phases and self.is_open and self._optimizer_start >= self._step_start:
            self.append((OPTIMIZER, self._optimizer_name, self._optimizer_start, end_ns, self.number, None))
        self._pieces = False

    # steps

    def begin_step(self, start_ns: int, *, gradients: bool) -> None:
        """A step begins here; one that is open ends with its last phase."""
        if self.is_open:
            self.end_step()
        self.mode = mode = self.forced_mode or (_TRAIN if gradients else _EVAL)
        self.global_step = step = self.global_step + 1
        counts = self.counts
        self.number = number = counts[mode]
        counts[mode] = number + 1
        self.keep_phases = step % self.every == 0
        self.metering = step % METER_EVERY == 0
        self._with_gradients = gradients
        self._after_fetch = self._saw_backward = self._saw_optimizer = False
        self._after_optimizer = self._after_optimizer and not gradients  # an evaluation in between takes nothing away
        self._first_key, self._one_root = 0, True
        self._step_start = self._last_end = start_ns
        self.is_open = True
        if mode is not self.settled:
            self._on_step(step, mode)

    def end_step(self, end_ns: int | None = None) -> None:
        """The open step ended with its last phase, or at the time given."""
        if self.is_open:
            self.is_open = False
            name = STEP[self.mode]
            self.append((name, name, self._step_start, end_ns or self._last_end, self.number, None))

    def _is_training(self) -> None:
        """What began without gradients has a backward: re-entrant checkpointing switches them off in its forward."""
        self.counts[self.mode] -= 1
        self._with_gradients, self.mode = True, ModeKeys.TRAIN
        self.number = self.counts[ModeKeys.TRAIN]
        self.counts[ModeKeys.TRAIN] += 1

    def _stream(self) -> Stream | None:
        """The loader that the loop reads from now, if it does."""
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
            return not gradients or self._after_optimizer
        if stream.credits == 0:
            return False
        if self._after_fetch:
            stream.credits -= 1
            stream.burst -= 1
            return True
        # Several batches were fetched at once.  The same model, run again after a backward and before any optimizer,
        # is the next micro-batch; another model, or the same one after it, belongs to this step (GANs).
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

    def _begin_unseen(self, start_ns: int) -> None:
        """Begin the step of a forward that could not be seen (it ran inside a compiled region)."""
        if self.manual or self.in_fetch:
            return
        stream = self._stream()
        if stream is None:
            if self._after_optimizer and not (self.is_open and self._forwards):
                self._begin_keeping(self._last_end if self.is_open else start_ns)
        elif stream.credits and self._after_fetch:
            stream.credits -= 1
            stream.burst -= 1
            self._begin_keeping(self._fetch_end)

    def _begin_keeping(self, start_ns: int) -> None:
        saw_backward, saw_optimizer = self._saw_backward, self._saw_optimizer
        self.begin_step(start_ns, gradients=True)
        self._saw_backward, self._saw_optimizer = saw_backward, saw_optimizer
