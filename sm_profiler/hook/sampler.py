"""The sampler: look at the training thread's Python stack several times a second, and sum up where the time goes.

Its thread does nothing else: a disk that hangs stops the recorder, and the sampler must still see why a step is long.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from types import FrameType
from typing import Protocol

from sm_profiler import threads
from sm_profiler.config import Profile
from sm_profiler.formats.event_names import SAMPLES
from sm_profiler.formats.recorded import Loop
from sm_profiler.formats.trace_writer import Span
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.frames import Frames, current_frames, outwards, stack_and_lines
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.own_work import OwnWork
from sm_profiler.hook.recorder import MAX_STRETCH
from sm_profiler.hook.scheduling import Helpers, waited_ns
from sm_profiler.hook.stacks import NEAR_SECONDS, Key, Lengths, Place, Prompt, StackReader, Tally, to_args
from sm_profiler.hook.steps import StepTracker
from sm_profiler.settings import SAMPLER as SAMPLER_SWITCH
from sm_profiler.settings import SAMPLER_ENABLED

SAMPLER = "sampler"

DELAY = 1 / 15  # seconds between samples
DENSE_DELAY = 1 / 60  # while a step is long
MAX_DELAY = 1.0  # of the time for which the training has a core
SHARE = 0.0015  # of the time, without the training's waits for a core: CPU time of the sampler's thread
# A sample costs several times as much on a slow or busy machine, where a short job would be judged by a handful.
EARLY, EARLY_SECONDS = 2, 20.0  # times its share, in the first seconds of steps
SAVED = 0.005  # seconds of CPU time that may be saved up, for a while of dense samples
START_SLOWS = 1000.0  # before the first step the delay is at least the time so far divided by this
WRITE_SECONDS, LATER_SECONDS = 1.0, 10.0  # between events: at first, and once the job has run for
LATER_AFTER = 60.0
HOLD_SECONDS = 600.0  # for which samples wait until it is known whether their step is long
END = {"outside": "end"}  # what no further step follows comes after the loop
WITHOUT_HELPERS = frozenset(
    {"start", "outside"}
)  # phases in which the training thread waits for no other of the process
LOOP_STEPS = 3  # whose functions are recorded; the first one may be a call that builds the model
MAX_NOTES = 200  # collections between two events whose caller is looked up


class Source(Protocol):
    """Samples of other processes: loader workers."""

    def read(self) -> list[tuple[Key, float, float]]:
        """Return stacks with the seconds and samples that are new since the last call."""


def is_wanted(profile: Profile, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether neither the environment nor the configuration switches the sampler off."""
    given = {key.lower(): value for key, value in profile.parameters.items()}
    in_config = {SAMPLER_ENABLED.name: str(given.get(SAMPLER_ENABLED.name.lower(), ""))}
    return bool(SAMPLER_SWITCH.usable(environment) and SAMPLER_ENABLED.read_or_default(in_config))


class Sampler(Collector):
    """Samples the training thread.

    Attributes:
        declared: phases that the script declares, the innermost last.
        sources: samples of other processes.
        reader: reduces stacks.
        cpu_seconds: CPU time of the sampler's thread so far.
        thrift: returns the part of its usual CPU time that it may take.
        helpers_ns: time so far by which threads that the training thread waits for had no core.
    """

    name = SAMPLER

    def __init__(  # each is a part that tests replace
        self,
        append: Callable[[Span], None],
        tracker: StepTracker,
        thread: Callable[[], int | None],
        *,
        is_recording: Callable[[], bool],
        on_error: Callable[[Collector, BaseException], None],
        work: OwnWork | None = None,
        clock: Callable[[], int] = perf_counter_ns,
        own_cpu: Callable[[], float] = time.thread_time,
        frames: Frames = current_frames,
        waited: Callable[[], int] = waited_ns,
        helpers: Helpers | None = None,
    ) -> None:
        self._append = append
        self._tracker = tracker
        self._training_thread = thread
        self._is_recording = is_recording
        self._on_error = on_error
        self._work = work or OwnWork(append)
        self._clock = clock
        self._own_cpu = own_cpu
        self._frames = frames
        self._waited_ns = waited
        self._helpers = helpers or Helpers()
        self.helpers_ns = 0
        self.declared: list[str] = []
        self.sources: list[Source] = []
        self.reader = StackReader()
        self.cpu_seconds = 0.0
        self.thrift: Callable[[], float] = lambda: 1.0
        self._random = random.Random()  # not a secret; the script's own generator must not be touched
        self._prompt = Prompt()
        self._reset()

    def _reset(self) -> None:
        self._tally = Tally()
        self._loops: set[tuple[tuple[str, str], ...]] = set()
        self._notes: deque[tuple[tuple[Place, ...], str, float]] = deque(maxlen=MAX_NOTES)
        self._lengths = Lengths()
        self._stop = threading.Event()
        self._thread: threads.Thread | None = None
        self._began_ns = self._last_ns = self._written_ns = self._clock()
        self._kept_ns = self._work.kept_ns(self._last_ns)
        self._loop_ns: int | None = None  # time of the first sample in a step
        self._seen = (-1, 0)  # number of a step and its start
        self._seen_ns = 0  # time of the last sample
        self._was_training = True
        self._saved = SAVED
        self._stretch = 1.0  # seconds for a second of the training, which has a core for a part of the time only
        self._last_waited = self._waited_ns()

    # life cycle

    def begin(self) -> None:
        """Start the thread: with the hook, before the first step, so that imports and the opening of data are seen."""
        if self._thread is None:
            self._thread = threads.start(self._run, self._stop, name="sm-profiler sampler")

    def start(self) -> None:
        """Start the thread in a forked child, with its first step."""
        self.begin()

    def forked(self) -> None:
        """Forget the parent's samples; the thread does not exist here."""
        self.sources.clear()
        self.declared.clear()
        self.cpu_seconds = 0.0
        self.helpers_ns = 0
        self._helpers.forked()
        self._prompt.forked()
        self._reset()

    def failed(self) -> None:
        """End the thread."""
        self._stop.set()

    def close(self) -> None:
        """End the thread and record what is left."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread.ident != threading.get_ident():
            thread.join(0.5)
            if thread.is_alive():
                return
        self._tally.settle_early(self._lengths.is_long)
        self._tally.settle(rename=END)
        self.write(self._clock())

    def _run(self, stop: threading.Event) -> None:
        try:
            with self._work.unrecorded():
                self._loop(stop)
        except Exception as error:  # fail open
            self._on_error(self, error)
        finally:
            self._helpers.close()

    def _loop(self, stop: threading.Event) -> None:
        while not stop.wait(self.delay(self._clock()) * self._random.uniform(0.5, 1.5)):
            before = self._own_cpu()
            self._prompt.wait(self._random.uniform(0, NEAR_SECONDS))
            self.sample(now := self._clock())
            if now - self._written_ns >= self._write_every(now) * 1e9 and self._is_recording():
                self.write(now)
            used = self._own_cpu() - before
            self.cpu_seconds += used
            self._saved -= used
            threads.hide()

    # pace

    def delay(self, now_ns: int) -> float:
        """Return the seconds until the next sample: fewer in a long step, more if sampling is expensive here."""
        if self._saved < 0:
            return min(DELAY - self._saved / self._share(now_ns), MAX_DELAY) * self._stretch
        number, start_ns = self._seen
        if number < 0:
            return min(max(DELAY, (now_ns - self._began_ns) / 1e9 / START_SLOWS), MAX_DELAY)
        dense = self._saved > SAVED / 2 and self._lengths.is_long((now_ns - start_ns) / 1e9)
        return DENSE_DELAY if dense else DELAY

    def _share(self, now_ns: int) -> float:
        """Return the CPU time that the sampler may take for each second."""
        early = self._loop_ns is not None and now_ns - self._loop_ns < EARLY_SECONDS * 1e9
        return SHARE * (EARLY if early else 1) * self.thrift()

    def _write_every(self, now_ns: int) -> float:
        return WRITE_SECONDS if (now_ns - self._began_ns) / 1e9 < LATER_AFTER else LATER_SECONDS

    # samples

    def sample(self, now_ns: int) -> None:
        """Add one sample of the training thread, which counts for the time since the last one.

        What the hook does on that thread is no line of the script, and neither is the time that it took since then.
        """
        thread = self._training_thread()
        stack, lines = stack_and_lines(thread, self._frames)
        own = self._work.is_own(thread)
        phase = self.declared[-1] if self.declared else phase_of(self._tracker, stack)  # before the thread runs on
        places, leaf = self.reader.read(stack, lines)
        del stack  # frames keep what is local to them alive
        seconds = (now_ns - self._last_ns) / 1e9
        self._last_ns = now_ns
        kept = self._work.kept_ns(now_ns)
        counted = seconds - max(kept - self._kept_ns, 0) / 1e9
        self._kept_ns = kept
        long = self._follow_step(now_ns)
        waited, delay = self._waited_ns(), self._helpers.delay(now_ns)
        if self.declared or phase in WITHOUT_HELPERS:
            delay = 0
        self.helpers_ns += delay
        waiting = (waited - self._last_waited + delay) / 1e9
        self._last_waited = waited
        ran = max(seconds - waiting, 0.0)
        self._saved = min(self._saved + self._share(now_ns) * ran, SAVED)
        self._stretch = min(max(seconds, 1e-9) / max(ran, 1e-9), MAX_STRETCH)
        if places and not own and counted > 0:
            self._tally.hold((phase, long, leaf, places), counted, min(waiting, counted))

    def step_begins(self, step: int, mode: ModeKeys) -> bool:
        """Record which functions of the script run the first steps."""
        if mode is ModeKeys.TRAIN and 0 < step <= LOOP_STEPS and self._is_recording():
            places, _ = self.reader.read(outwards(sys._getframe(1)))
            functions = tuple((file, function) for file, _, function in places)
            if functions and functions not in self._loops:  # generated code has none
                self._loops.add(functions)
                now_ns = self._clock()
                self._append(Loop(frames=places).span(functions[-1][1], now_ns, now_ns, step))
        return step >= LOOP_STEPS

    def _follow_step(self, now_ns: int) -> bool:
        """Return whether the running step is long already; settle the samples of the one before."""
        tracker = self._tracker
        number, start_ns = tracker.latest
        last, last_start_ns = self._seen
        rest = tracker.rest
        training = tracker.mode is ModeKeys.TRAIN and not (rest is not None and rest.evaluates)
        if number != last:
            self._settle_step(last, (start_ns - last_start_ns) / 1e9, number - last, trains=training)
            self._seen, self._was_training = (number, start_ns), training
        self._seen_ns = now_ns
        if number >= 0 and self._loop_ns is None:
            self._loop_ns = now_ns
        seconds = (now_ns - start_ns) / 1e9
        if number >= 0 and seconds > HOLD_SECONDS:
            self._tally.settle(rename=END)
        return number >= 0 and training and self._lengths.is_long(seconds)

    def _settle_step(self, step: int, seconds: float, steps: int, *, trains: bool) -> None:
        """Settle the samples of a step that is over; `seconds` are those of it and the steps that no sample saw."""
        lengths = self._lengths
        if step < 0 or not trains or not self._was_training:
            self._tally.settle()
            return
        at_least = seconds if steps == 1 else (self._seen_ns - self._seen[1]) / 1e9
        if lengths.known:
            self._tally.settle(long=lengths.is_long(at_least))
        else:
            self._tally.set_aside(step, at_least)
        lengths.add(seconds / steps)
        if lengths.known:
            self._tally.settle_early(lengths.is_long)

    def read_also(self, source: Source) -> None:
        """Add the samples of other processes to ours."""
        if source not in self.sources:
            self.sources.append(source)

    def note_collection(self, frame: FrameType | None, seconds: float) -> None:
        """Note who caused a garbage collection, on the thread that it ran on."""
        if threading.get_ident() == self._training_thread() and len(self._notes) < MAX_NOTES:
            self._notes.append((*self.reader.read(outwards(frame)), seconds))

    def write(self, now_ns: int) -> None:
        """Record what was summed up since the last time."""
        tally = self._tally
        while self._notes:
            places, leaf, seconds = self._notes.popleft()
            tally.add(("gc", False, leaf, places), seconds)
        for source in self.sources:
            for key, seconds, count in source.read():
                tally.add(key, seconds, count)
        if tally:
            args = {"seconds": round((now_ns - self._written_ns) / 1e9, 3), **to_args(tally.take())}
            args["waited_ms"] = tally.take_waits()
            self._append((SAMPLES, "samples", now_ns, now_ns, -1, args))
        self._written_ns = now_ns


def phase_of(tracker: StepTracker, stack: Sequence[FrameType] = ()) -> str:
    """Return what the training thread does now; during a rest, its stack shows it."""
    training = tracker.mode is ModeKeys.TRAIN
    if tracker.global_step < 0:
        return "wait" if tracker.in_fetch else "start"
    if (rest := tracker.rest) is not None:
        return rest.phase(stack)
    if not training and (tracker.is_open or tracker.in_fetch):
        return "evaluation"
    running = (
        (tracker.in_fetch, "wait"),
        (tracker.in_backward, "backward"),
        (tracker.forward_key, "forward"),
        (tracker.in_optimizer, "optimizer"),
        (tracker.in_compiled, "compiled"),
        (tracker.evaluates_after == tracker.train_number, "evaluation"),
        (training and tracker.is_open and not tracker.after_last_phase, "between"),
    )
    return next((name for active, name in running if active), "outside")
