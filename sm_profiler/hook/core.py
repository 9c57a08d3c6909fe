"""The hook of one process: configuration, windows, recording; what a framework's adapter calls and a user may call."""

from __future__ import annotations

import atexit
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from multiprocessing import util as multiprocessing_util
from typing import Any

from sm_profiler._version import __version__
from sm_profiler.config import Profile, load_profile
from sm_profiler.container import read_resources, rooted
from sm_profiler.formats.layout import source_name
from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter
from sm_profiler.hook import settings
from sm_profiler.hook.garbage import GarbageWatch
from sm_profiler.hook.guard import Guard
from sm_profiler.hook.kernel_clock import kernel_clock
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.recorder import Recorder
from sm_profiler.hook.steps import Record, StepTracker
from sm_profiler.hook.timebase import Timebase
from sm_profiler.hook.windows import Collector, Window, bounds
from sm_profiler.monitor.limits import memory_total

MISSING = "not available in this version"
MAX_SPARSE = 1024


class Hook:
    """Profiles one training process.  Made by `Hook.create_from_config()`, or by the automatic entry."""

    def __init__(self, profile: Profile, source: settings.ConfigText | None = None) -> None:
        self.profile = profile
        self.guard = Guard()
        self.root = rooted(profile.local_path)
        self.node = read_resources().node
        self.framework = "pytorch"
        self.find_rank: Callable[[], int | None] = settings.rank_from
        self.collectors: dict[str, Collector] = {}  # turned on and off at step boundaries
        self.available: set[str] = set()  # further collectors, which the adapter turns itself
        self.is_helper: Callable[[], bool] = lambda: False  # a loader's worker: it has no steps
        self.on_step: list[Callable[[ModeKeys], bool | None]] = []  # see at_each_step
        self.on_fork: list[Callable[[], None]] = []
        self.on_profile: list[Callable[[], None]] = []  # a changed configuration takes effect, at a step's start
        self.windows: dict[str, Window] = {}
        self.batch_sizes: set[int] = set()  # of the loaders that were read with gradients enabled
        self.notes: dict[str, str] = {}  # collector → why it is not there, for the report
        self.on_beat: list[Callable[[], None]] = []  # once a second, on the background thread
        self.on_close: list[Callable[[], None]] = []
        self.on_exit: list[Callable[[], None]] = []
        self.exiting = False
        self.on_broke: list[Callable[[], None]] = []
        self.after_close: list[Callable[[], None]] = []
        self.timebase = Timebase()
        self._source = source
        self._next_profile: Profile | None = None
        self._recorder: Recorder | None = None
        self._queue_early: deque[TraceEvent] = deque()
        self.tracker = StepTracker(self._append_first, self._step_begins)
        self._garbage = GarbageWatch(self._append_if_recording)
        self.started_us = 0
        self.loaded_us = self.timebase.now_us()  # the framework has been imported
        self.closed = False
        self.quiet = False  # closed, or switched off by an error of its own: nothing is recorded any more
        self.rank: int | None = None
        self._to_shed: set[str] = set()
        self._may_be_helper = parent_process() is not None
        self._take_ranges(profile)
        os.register_at_fork(after_in_child=self._forked)

    # life

    @classmethod
    def create_from_config(cls) -> Hook | None:
        """The hook that the job's configuration asks for, installed; None where profiling is off.

        The hook that the automatic entry has installed already is returned as it is.
        """
        from sm_profiler.hook.entry import get_hook, install  # noqa: PLC0415 - entry builds on this module

        return get_hook(create=False) or install()

    @property
    def recorder(self) -> Recorder:
        """The recorder; the first use starts it, and with it the file."""
        return self._recorder or self._start(time.perf_counter_ns())

    def _append_first(self, record: Record) -> None:
        """The tracker's first record starts the recorder; the next ones go straight into its queue."""
        if self.is_helper():
            self.tracker.append = lambda _record: None
        elif not self.closed:
            (self._recorder or self._start(record[2])).records.append(record)

    def _append_if_recording(self, record: Record) -> None:
        """What happens in a process without steps (a pool's worker) is no reason to start a file."""
        if self._recorder is not None:
            self._recorder.records.append(record)

    def _forked(self) -> None:
        """In a forked child: nothing of the parent's is touched, and a recorder of its own starts with its first step."""
        try:
            if self._recorder is not None:
                self._recorder.writer.abandon()
                self._recorder = None
            self._queue_early = deque()
            self.tracker.reset(self._append_first)
            self._may_be_helper = True
            self.windows.clear()
            self._take_ranges(self.profile)
            for action in self.on_fork:
                action()
        except Exception as error:  # noqa: BLE001 - fail open
            self.broke(error)

    def _start(self, start_ns: int) -> Recorder:
        rank = self.find_rank()
        self.rank = rank
        number = os.getpid() if rank is None else rank
        self.started_us = self.timebase.to_us(start_ns)
        writer = TraceWriter(
            self.root,
            source_name(number, self.node),
            max_bytes=self.profile.rotate_max_bytes,
            close_seconds=self.profile.rotate_close_seconds,
            fail_threshold=self.profile.fail_threshold,
            start_us=self.started_us,
            metadata=self.describe,
        )
        self._recorder = recorder = Recorder(writer, self.timebase, self.guard, tracker=self.tracker, watch=self._beat)
        self.tracker.append = recorder.records.append
        self._queue_early, early = recorder.events, self._queue_early
        recorder.events.extend(early)
        self._garbage.start()
        recorder.start()
        atexit.register(self.end)
        multiprocessing_util.Finalize(None, self.end, exitpriority=10)  # children leave by os._exit
        return recorder

    def end(self) -> None:
        """The process ends, or the hook is taken out: nothing goes on, not even what watches the time after the loop."""
        if self.exiting:
            return
        self.exiting = True
        was_closed = self.closed
        self.close()
        if was_closed:
            for action in self.on_exit:
                with self.guarded("closing"):
                    action()

    def close(self) -> None:
        """End the profile: the last step, open windows, the file.  Safe to call twice."""
        if self.closed:
            return
        with self.guarded("closing"):
            self.tracker.end_step()
        for name, collector in self.collectors.items():
            if name in self.windows and self.windows[name].active and not self.guard.is_off(name):
                with self.guarded(name):
                    collector.leave(-1)
        for action in self.on_close:
            with self.guarded("closing"):
                action()
        self.closed = self.quiet = True
        self._garbage.stop()
        if self._recorder:
            with self.guarded("closing"):
                self._recorder.close()
        for action in self.after_close:
            with self.guarded("closing"):
                action()

    def broke(self, error: BaseException) -> None:
        """An error of ours in what is always on: nothing more is recorded, the training goes on."""
        self.quiet = True
        self.guard.failed("hook", error)
        for action in self.on_broke:
            with self.guarded("closing"):
                action()

    @contextmanager
    def guarded(self, collector: str) -> Iterator[None]:
        """Whatever goes wrong inside costs that collector, and nothing else."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - this is the promise
            self.guard.failed(collector, error)

    # configuration

    def _take_ranges(self, profile: Profile) -> None:
        """Give each collector a window; one whose range is as before keeps its own, ended or not."""
        for name, config in profile.collectors.items():
            known = self.windows.get(name)
            if known is None or bounds(known.range) != bounds(config):
                if known is not None and known.active and name in self.collectors:
                    known.ended = True
                    self._turn(name, self.collectors[name], known, -1)
                self.windows[name] = Window(config)
        for name in set(self.windows) - set(profile.collectors):
            self.windows[name].ended = True
        self.profile = profile

    def _beat(self) -> None:
        """On the background thread, once a second."""
        self._watch()
        for action in self.on_beat:
            action()
        if self._recorder is not None and self._recorder.meter.is_over_budget():
            self._shed()

    def _shed(self) -> None:
        """Over its budget the hook does less, one thing at a time; steps themselves are never shed."""
        for name in ("python", "detailed", "dataloader"):
            window = self.windows.get(name)
            if window is not None and window.active and name not in self.notes:
                self.notes[name] = "shed: the hook cost more than its budget"
                self._to_shed.add(name)
                self.tracker.settled = None
                return
        self.tracker.every = min(self.tracker.every * 2, MAX_SPARSE)

    def _watch(self) -> None:
        """A changed file takes effect at the next step."""
        source = self._source
        if source is None or source.path is None:
            return
        try:
            if source.path.stat().st_mtime_ns == source.changed:
                return
            self._source = settings.read_config(source.path)
            profile = load_profile(self._source.text)
        except (OSError, ValueError) as error:  # ConfigError is a ValueError
            self.guard.warn(f"the changed configuration is not used: {error}")
            return
        for problem in profile.problems:
            self.guard.warn(problem)
        self._next_profile = profile
        self.tracker.settled = None

    # steps

    def at_each_step(self, action: Callable[[ModeKeys], bool | None]) -> None:
        """Call it when a step begins.  If it returns true, it need not hear of the next ones of this mode for now."""
        self.on_step = [*self.on_step, action]  # a new list: one that is being gone through stays as it is
        self.tracker.settled = None

    def no_longer(self, *actions: Any) -> None:
        """Do not call these any more; those that are not called anyway do no harm."""
        self.on_step = [action for action in self.on_step if action not in actions]

    def _step_begins(self, step: int, mode: ModeKeys) -> None:
        """Called by the tracker on the training thread."""
        tracker = self.tracker
        tracker.settled = mode  # first of all: what comes up from here on, in whichever thread, takes it back
        if self._may_be_helper:
            if self.is_helper():
                self.quiet = True  # a dataset may well run a model; that is not a step
                return
            self._may_be_helper = False
        if self._next_profile is not None:
            profile, self._next_profile = self._next_profile, None
            self._take_ranges(profile)
            for changed in self.on_profile:
                with self.guarded("configuration"):
                    changed()
        settled = not self.windows or self._turn_all(step)
        for action in self.on_step:
            settled = bool(action(mode)) and settled
        if not settled:
            tracker.settled = None

    def _turn_all(self, step: int) -> bool:
        """Ask every window about this step; whether all of them have ended."""
        ended = True
        for name, window in self.windows.items():
            if name in self._to_shed or self.guard.is_off(name):
                window.ended = True
            collector = self.collectors.get(name)
            if collector is not None and (window.active or not window.ended):
                self._turn(name, collector, window, step)
                ended = ended and window.ended
        return ended

    def _turn(self, name: str, collector: Collector, window: Window, step: int) -> None:
        was = window.active
        now = window.at_step(step, time.time(), time.monotonic())
        if was is now:
            return
        try:
            if now:
                collector.enter(step)
            else:
                collector.leave(step)
        except Exception as error:  # noqa: BLE001 - a collector that fails is switched off, the training goes on
            self.guard.failed(name, error)
            window.ended, window.active = True, False

    # what a script may say

    def set_mode(self, mode: ModeKeys) -> None:
        """Count the next steps under this mode, whatever gradients say."""
        self.tracker.forced_mode = ModeKeys[mode.name]

    def register_module(self, module: Any) -> None:
        """Accepted for the old library's sake: models are found as they are used."""

    def register_loss(self, loss: Any) -> None:
        """Accepted for the old library's sake."""

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step of a loop that the automatic entry cannot see; from the first use on, only these are steps."""
        tracker = self.tracker
        if self.quiet:
            yield
            return
        try:
            tracker.manual = True
            tracker.begin_step(time.perf_counter_ns(), gradients=tracker.forced_mode is not ModeKeys.EVAL)
        except Exception as error:  # noqa: BLE001 - fail open
            self.broke(error)
        try:
            yield
        finally:
            try:
                tracker.end_step(time.perf_counter_ns())
            except Exception as error:  # noqa: BLE001 - fail open
                self.broke(error)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A span of the script's own, in the timeline under its name."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            try:
                self.tracker.append((name, name, start, time.perf_counter_ns(), self.tracker.number, None))
            except Exception as error:  # noqa: BLE001 - fail open
                self.broke(error)

    def record_trace_events(
        self,
        training_phase: str = "",
        op_name: str = "",
        phase: str = "X",
        timestamp: float | None = None,
        duration: float = 0.0,
        **args: Any,
    ) -> None:
        """An event of the script's own; `timestamp` and `duration` in seconds, as in the old library."""
        try:
            start_us = self.timebase.now_us() if timestamp is None else int(timestamp * 1e6)
            text = json.dumps(args, default=str) if args else ""
            event = TraceEvent(training_phase, op_name, start_us, int((duration or 0) * 1e6), text, phase)
            self._queue_early.append(event)
        except Exception as error:  # noqa: BLE001 - fail open
            self.guard.failed("user events", error)

    # what the report should know

    def describe(self) -> dict[str, Any]:
        """The metadata record of each file."""
        states = dict(self.notes)
        for name in self.profile.collectors:
            if name not in self.collectors and name not in self.available and name not in states:
                states[name] = f"unavailable: {MISSING}"
        states.update({name: f"failed: {reason}" for name, reason in self.guard.failures.items()})
        recorder, clock = self._recorder, kernel_clock()
        return {
            "version": __version__,
            "framework": self.framework,
            "node": self.node,
            "rank": self.rank,
            "pid": os.getpid(),
            "loaded_us": self.loaded_us,
            "start_us": self.started_us,
            "clock_offset_us": clock and clock.offset_us,
            "clock_error_us": clock and clock.error_us,
            "clock_jumps": self.timebase.jumps,
            "dropped": recorder.dropped if recorder else 0,
            "phases_every": self.tracker.every,
            "collectors": states,
            "batch_size": next(iter(self.batch_sizes)) if len(self.batch_sizes) == 1 else None,
            "instance_type": read_resources().instance_type,
            "memory_total": memory_total(),
        }
