"""The profiling of one process from start to end: configuration, steps, collectors, recording."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
from multiprocessing import util as multiprocessing_util
from types import CodeType
from typing import Any

import attrs

from sm_profiler import threads
from sm_profiler._version import __version__
from sm_profiler.config import Profile
from sm_profiler.container import read_resources, rooted
from sm_profiler.formats.layout import source_name
from sm_profiler.formats.process_end import END, END_STEP, END_US, EXITED, OOM_KILLS
from sm_profiler.formats.trace_writer import Span, TraceEvent, TraceWriter, write_record
from sm_profiler.hook import settings
from sm_profiler.hook.adapter import Collector, FrameworkAdapter, NoFramework, overrides
from sm_profiler.hook.clock import Timebase, birth, kernel_clock
from sm_profiler.hook.frames import definition
from sm_profiler.hook.guard import Guard, find_handlers, pass_on
from sm_profiler.hook.model_inputs import ModelInputs
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.overhead import OverheadController
from sm_profiler.hook.own_work import Aside, OwnWork
from sm_profiler.hook.padding import Padding
from sm_profiler.hook.process_end import complete, how_it_ends, how_it_leaves, record_exit_code
from sm_profiler.hook.recorder import Recorder
from sm_profiler.hook.sampler import Sampler
from sm_profiler.hook.scheduling import waited_ns
from sm_profiler.hook.steps import StepObserver, StepTracker
from sm_profiler.hook.windows import Schedule, Slowdown
from sm_profiler.limits import memory_total, oom_kills

UNSUPPORTED = "not available in this version"
THREAD_END_SECONDS = 10.0  # the end of a training thread waits no longer for the disk, nor does the end of the process
LEAVE_SECONDS = 2.0  # a process that leaves by os._exit waits no longer for the disk
MAX_THREAD_ENDS = 16  # that complete the file; later ones leave it open


class Session(StepObserver):
    """Profiles one training process.

    The adapters patch their frameworks and feed the tracker; the session turns the tracker's steps into the life cycle
    of its collectors, and records go through the recorder into the trace files.

    Attributes:
        profile: the configuration in force.
        root: folder of the profile.
        node: name of this machine, `algo-1`.
        rank: rank of this process, or None; set when recording starts.
        adapters: the frameworks' adapters, in the order in which they were armed.
        tracker: finds the steps.
        armed: modules of the frameworks that take part, or failed to.
        slowdown: compares the steps of windows with those before.
        work: what the hook does besides the callbacks of each step.
        schedule: the windows, and the collectors that they turn on and off.
        controller: keeps the hook within its overhead budget.
        guard: failures so far.
        sampler: samples the training thread's stack, unless it is off.
        notes: collector → why it has no or partial data, for the report.
        left_out: events of the script whose arguments cannot be recorded.
        events_cut: events and phases of the script whose names or arguments were too long.
        elsewhere: phases on other threads than the training's, which are no part of the loop.
        quiet: nothing more is recorded: the session is closed, failed, or runs in a loader's worker.
        on_retired: called once a changed configuration has switched the hook off, with that configuration.
        exiting: the process is about to exit.
    """

    def __init__(
        self,
        profile: Profile,
        make_adapter: Callable[[Session], FrameworkAdapter] | None = None,
        source: settings.ConfigText | None = None,
    ) -> None:
        self.profile = profile
        self.guard = Guard()
        self.root = rooted(profile.local_path)
        self.node = read_resources().node
        self.rank: int | None = None
        self.notes: dict[str, str] = {}
        self.left_out = self.elsewhere = self.events_cut = 0
        self.timebase = Timebase()
        self.tracker = StepTracker(self._record_first, self)
        self.work = OwnWork(self.append)
        self.aside = Aside()
        self.schedule = Schedule(self.is_off, self.run, self.note)
        self.sampler: Sampler | None = None
        self.controller = OverheadController(
            self.tracker,
            self.schedule.windows,
            self._shed,
            work=self.work,
            waited=lambda: waited_ns() + self._helpers_ns(),
        )
        self.slowdown = Slowdown(self.work, self.schedule.active)
        self.closed = self.quiet = self.exiting = self._led = False
        self._source = source
        self._reload_problem = ""  # the latest, so that it is reported once
        self._next_profile: Profile | None = None
        self._retired: threads.Thread | None = None  # finishes the files
        self.on_retired: Callable[[settings.ConfigText], object] | None = None
        self._recorder: Recorder | None = None
        self._events: deque[TraceEvent] = deque()  # of the script
        self._collectors: tuple[Collector, ...] = ()
        self._at_steps: tuple[Collector, ...] = ()
        self._batch_sizes: set[int] = set()
        self._collate: dict[str, Any] = {}
        self.inputs = ModelInputs()
        self.padding = Padding()
        self.dtype: str | None = None  # of the model's parameters, once it has trained; "" if it has none
        self._workers = -1  # of the training's loaders, the most; -1 before the first one
        self._started_us = 0
        self._starting = threading.RLock()  # the first step and the watch for hangs may start the recorder at once
        self._ended: dict[str, Any] = {}  # how the process ends, once it does
        self._oom_kills = oom_kills()
        self._pid = os.getpid()
        self._thread_ends = 0  # of threads that trained
        self._loaded_us = self.timebase.now_us()  # the framework has been imported
        self._birth = birth(self._loaded_us)
        self._may_be_helper = parent_process() is not None
        self.adapters: list[FrameworkAdapter] = []
        self.armed: list[str] = []
        self._leader: FrameworkAdapter = NoFramework()
        self._detailed: Collector | None = None  # of the framework that leads
        if make_adapter is not None:
            self._leader = make_adapter(self)
            self.adapters.append(self._leader)
        self.schedule.configure(profile.collectors)
        os.register_at_fork(after_in_child=self._forked)

    def begin_here(self) -> None:
        """Let the job begin now: what the process did before, such as the cells of a notebook, is no part of it."""
        now = self.timebase.now_us()
        self._birth = attrs.evolve(self._birth, process_us=now, container_us=None)
        self._loaded_us = now

    # frameworks

    @property
    def adapter(self) -> FrameworkAdapter:
        """The adapter of the framework that trains, as far as that is known."""
        return self._leader

    def arm(self, adapter: FrameworkAdapter, *, first: bool = False) -> None:
        """Let the adapter of a framework take part; one that fails is left out.

        Args:
            adapter: the adapter.
            first: this framework comes before those armed so far, as long as none is seen to train.
        """
        try:
            adapter.install()
        except Exception as error:  # fail open
            self.adapter_failed(adapter, error)
            return
        self.adapters.append(adapter)
        if isinstance(self._leader, NoFramework) or (first and not self._led):
            self._let_lead(adapter)

    def adapter_failed(self, adapter: FrameworkAdapter, error: BaseException) -> None:
        """Switch an adapter off and restore its framework; the training continues, and all else is recorded on."""
        self.guard.failed(adapter.framework, error)
        took_part = adapter in self.adapters
        self.adapters = [one for one in self.adapters if one is not adapter]
        self.disarm(adapter)
        if took_part and not self.is_helper():
            self.start_recording(0.0)  # in a process without steps, nothing else would store the failure

    def disarm(self, adapter: FrameworkAdapter) -> None:
        """Restore a framework."""
        with self.guarded(adapter.framework):
            adapter.remove()

    def find(self, framework: str) -> FrameworkAdapter | None:
        """Return the adapter of a framework, or None if it is not armed."""
        return next((one for one in self.adapters if one.framework == framework), None)

    def lead(self, adapter: FrameworkAdapter) -> None:
        """Note that this adapter's framework trains, before its first step begins."""
        self._led = True
        if self._leader is not adapter:
            self._let_lead(adapter)

    def _let_lead(self, adapter: FrameworkAdapter) -> None:
        self._leader = adapter
        before, now = self._detailed, adapter.detailed()  # Keras has none before its backend is loaded
        if now is not None and now is not before:
            if before is not None:
                self.schedule.leave(before.name, -1)
                self.discard(before)
            self._detailed = now
            self.add(now)

    # collectors

    def add(self, collector: Collector) -> None:
        """Let a collector take part from the next event on."""
        self._set_collectors((*self._collectors, collector))
        if collector.follows_steps and collector.name:
            self.schedule.collectors[collector.name] = collector
        if self._recorder is not None:
            self.run(collector, collector.start)

    def discard(self, collector: Collector) -> None:
        """Take a collector out; one that is not there does no harm."""
        self._set_collectors(tuple(one for one in self._collectors if one is not collector))
        if self.schedule.collectors.get(collector.name) is collector:
            del self.schedule.collectors[collector.name]

    def has(self, name: str) -> bool:
        """Return whether a collector of this name takes part."""
        return any(collector.name == name for collector in self._collectors)

    def _set_collectors(self, collectors: tuple[Collector, ...]) -> None:
        self._collectors = collectors
        self._at_steps = tuple(one for one in collectors if overrides(one, "step_begins"))
        self.tracker.reports_step_ends = any(overrides(one, "step_ends") for one in collectors)
        self.tracker.reports_forward_ends = any(overrides(one, "forward_ends") for one in collectors)
        self.wake()

    def _may_rest(self) -> bool:
        """Return whether all windows of the collectors are over to which the ends of steps or forwards are reported."""
        ended = {name for name, window in self.schedule.windows.items() if window.ended}
        waiting = (one for one in self._collectors if one.name not in ended)
        return not any(overrides(one, "step_ends") or overrides(one, "forward_ends") for one in waiting)

    def wake(self) -> None:
        """Consult all collectors at the next step, even those that may be skipped."""
        self.tracker.settled = None

    def is_off(self, name: str) -> bool:
        """Return whether a collector failed or was shed."""
        return self.guard.is_off(name) or name in self.controller.shed

    def run(self, collector: Collector, action: Callable[..., object], *args: Any) -> bool:
        """Call a method of a collector; if it raises, switch the collector off and return False."""
        try:
            action(*args)
        except Exception as error:  # fail open
            self.switch_off(collector, error)
            return False
        return True

    def switch_off(self, collector: Collector, error: BaseException) -> None:
        """Stop a collector that failed; the training continues."""
        self.guard.failed(collector.name, error)
        self.schedule.end(collector.name)
        with self.guarded(collector.name):
            collector.failed()

    def _notify(self, event: str, *args: Any, also_failed: bool = False) -> None:
        for collector in self._collectors:
            if overrides(collector, event) and (also_failed or not self.guard.is_off(collector.name)):
                self.run(collector, getattr(collector, event), *args)

    @contextmanager
    def guarded(self, collector: str) -> Iterator[None]:
        """Switch a collector off if the body raises."""
        try:
            yield
        except Exception as error:  # fail open
            self.guard.failed(collector, error)

    def note(self, collector: str, text: str) -> None:
        """Let the report explain why a collector has no or partial data."""
        self.notes[collector] = text

    def report_once(self, collector: str, text: str) -> None:
        """Warn of something in the log and in the report, if nothing was reported of this collector yet."""
        if collector not in self.notes:
            self.note(collector, text)
            self.guard.warn(text)

    def leave_out(self, problem: str) -> None:
        """Count an event of the script that cannot be recorded."""
        if not self.closed:
            self.left_out += 1
            self.report_once("user events", f"{problem}; such events are left out")

    def saw_batch_size(self, size: int) -> None:
        """Report the batch size of a loader that is read with gradients enabled."""
        self._batch_sizes.add(size)

    def saw_collate(self, code: CodeType | None) -> None:
        """Report the function that makes batches of such a loader; the first one of the script's is kept."""
        self._collate = self._collate or definition(code)

    def saw_input(self, value: Any) -> None:
        """Count a model's input in training, a tensor."""
        try:
            self.inputs.see(value.shape, self.tracker.number)
            if self.padding.left > 0 and self._workers < 0:  # no loader shows its batches
                with self.work.unrecorded():
                    self.padding.see(value)
        except Exception as error:  # a nested tensor has none
            pass_on(error)

    def saw_workers(self, count: int) -> None:
        """Report the workers of such a loader."""
        self._workers = max(self._workers, count)

    # recording

    @property
    def recorder(self) -> Recorder:
        """The recorder; the first access starts it, and with it the trace file."""
        return self._recorder or self._start(time.perf_counter_ns())

    @property
    def source(self) -> str:
        """Name of this process in file names: `<rank or pid>-<node>`."""
        rank = self._known_rank()
        return source_name(os.getpid() if rank is None else rank, self.node)

    def _known_rank(self) -> int | None:
        """Return the rank that the files have, or would have by now."""
        return self.find_rank() if self._recorder is None else self.rank

    def training_thread(self) -> int | None:
        """Return the id of the thread that trains."""
        return self._leader.training_thread()

    def find_rank(self) -> int | None:
        """Return the rank of this process as a framework or its launcher reports it, or None."""
        found = [rank for rank in (adapter.rank() for adapter in self.adapters) if rank is not None]
        return found[0] if found else settings.rank_from()

    def is_helper(self) -> bool:
        """Return whether this process only loads data."""
        return any(adapter.is_helper() for adapter in self.adapters)

    @property
    def is_recording(self) -> bool:
        """True while the recorder runs."""
        return self._recorder is not None and not self.closed

    def later(self, task: Callable[[], None]) -> None:
        """Run a task on the recorder's thread: file operations would stall the training thread."""
        self.recorder.tasks.append(task)

    def append(self, record: Span) -> None:
        """Queue a record; it is dropped unless recording has started, since a process without steps needs no file."""
        if self._recorder is not None:
            self._recorder.records.append(record)

    def append_span(self, name: str, start_ns: int, end_ns: int) -> None:
        """Queue a phase of the script or of an adapter; one of another thread than the training's is no part of the loop."""
        in_loop = threading.get_ident() == self.training_thread()
        self.elsewhere += not in_loop
        declared = {"declared": True} if in_loop else None
        self.tracker.append((name, name, start_ns, end_ns, self.tracker.number, declared))
        self.step_metered()

    def append_event(self, event: TraceEvent) -> None:
        """Queue an event of the script."""
        if not self.closed:
            self._events.append(event)
            self.step_metered()

    def _record_first(self, record: Span) -> None:
        """Start the recorder with the tracker's first record; the next ones go straight into its queue."""
        if self.is_helper():
            self.tracker.append = _ignore
        elif not self.closed:
            (self._recorder or self._start(record[2])).records.append(record)

    def start_recording(self, ago: float) -> None:
        """Start the recorder before the first step, unless it runs or the session is closed; times begin `ago` seconds ago."""
        if self._recorder is None and not self.closed:
            self._start(time.perf_counter_ns() - int(ago * 1e9))

    def _start(self, start_ns: int) -> Recorder:
        with self._starting:
            return self._recorder or self._new_recorder(start_ns)

    def _new_recorder(self, start_ns: int) -> Recorder:
        self.rank = self.find_rank()
        source = self.source
        self._started_us = self.timebase.to_us(start_ns)
        writer = TraceWriter(
            self.root,
            source,
            max_bytes=self.profile.rotate_max_bytes,
            close_seconds=self.profile.rotate_close_seconds,
            fail_threshold=self.profile.fail_threshold,
            start_us=self._started_us,
            metadata=self.describe,
            now_us=self.timebase.now_us,
        )
        self._recorder = recorder = Recorder(
            writer,
            self.timebase,
            self.guard,
            events=self._events,
            controller=self.controller,
            work=self.work,
            on_beat=self._beat,
            helpers_ns=self._helpers_ns,
            complete=self._complete,
        )
        self.tracker.append = recorder.records.append
        try:
            self._notify("start")
        finally:  # an exception of the script that strikes there ends its step, not the profile
            recorder.tasks.append(self._complete_left_files)
            recorder.start()
            atexit.register(self.end)
            multiprocessing_util.Finalize(None, self.end, exitpriority=10)  # children exit by os._exit
        return recorder

    def _helpers_ns(self) -> int:
        return self.sampler.helpers_ns if self.sampler is not None else 0

    def _complete(self, records: list[Span]) -> list[Span]:
        for adapter in self.adapters:
            with self.guarded(adapter.framework):
                records = adapter.complete(records)
        return records

    def _beat(self) -> None:
        find_handlers()
        self._reload_profile()
        self._notify("beat")

    def _shed(self, name: str) -> None:
        self.note(name, "shed: the hook cost more than its budget")
        self.wake()

    # configuration

    def _reload_profile(self) -> None:
        """Read a configuration file that changed; it takes effect at the next step."""
        source = self._source
        if source is None or source.path is None:
            return
        try:
            if source.path.stat().st_mtime_ns == source.changed:
                return
            self._source = source.again()
            profile = self._source.profile()
        except (OSError, ValueError) as error:  # ConfigError is a ValueError
            problem = f"the changed configuration is ignored: {error}"
            if problem != self._reload_problem:
                self.guard.warn(problem)
            self._reload_problem = problem
            return
        self._reload_problem = ""
        for problem in profile.warnings:
            self.guard.warn(problem)
        self.change_profile(profile)

    def change_profile(self, profile: Profile) -> None:
        """Adopt a profile at the next step."""
        self._next_profile = profile
        self.wake()

    # events of the tracker

    def step_began(self, step: int, mode: ModeKeys) -> None:
        """Turn collectors on and off, and notify them of the step."""
        tracker = self.tracker
        tracker.settled = mode  # first: wake() from here on, on any thread, must take effect
        if self._may_be_helper:
            if self.is_helper():
                self.quiet = True  # a dataset may run a model; that is no step
                return
            self._may_be_helper = False
        if self._next_profile is not None:
            self.profile, self._next_profile = self._next_profile, None
            if not self.profile.hook_on:
                self._retire()
                return
            self.schedule.configure(self.profile.collectors)
            self._notify("profile_changed", self.profile)
        self._end_slow_windows(step, mode)
        settled = self.schedule.at_step(step, tracker.batches)
        for collector in self._at_steps:
            if not self.guard.is_off(collector.name):
                try:
                    settled = collector.step_begins(step, mode) and settled
                except Exception as error:  # fail open
                    self.switch_off(collector, error)
        self.slowdown.windows_turned(tracker.step_start)
        tracker.rests = settled and self._may_rest()
        if not settled:
            tracker.settled = None

    def _end_slow_windows(self, step: int, mode: ModeKeys) -> None:
        for name in self.slowdown.step_begins(step, mode, self.tracker.step_start):
            factor = self.slowdown.factor(name)
            self.note(name, f"ended early: it made the training's steps {factor:.1f} times as long")
            self.schedule.leave(name, step)

    def step_ended(self) -> None:
        """Notify collectors."""
        self._notify("step_ends")

    def forward_ended(self) -> None:
        """Notify collectors."""
        self._notify("forward_ends")

    def step_metered(self) -> None:
        """Bound the queues, in case the recorder's thread is stuck."""
        if self._recorder is not None:
            self._recorder.trim()

    def loader_began(self, now_ns: int) -> None:
        """Notify the adapters."""
        for adapter in self.adapters:
            adapter.loader_began(now_ns)

    def batches_unused(self) -> None:
        """Notify the adapters."""
        for adapter in self.adapters:
            adapter.batches_unused()

    # ends

    def close(self) -> None:
        """End the profile: the last step, open windows, the trace file.  Further calls do nothing."""
        if self._retired is not None:
            self._retired.join()
        if not self.closed:
            self._stop()
            self._finish()

    def _retire(self) -> None:
        """End the profile, on the training thread, as a changed configuration asks for; the disk must not stall the training."""
        step = self.tracker.train_number
        self.tracker.cancel_step()
        self.note("profiler", f"switched off before step {step} by a change of the configuration: {self.profile.off}")
        self.guard.warn(f"the configuration changed, and nothing more is recorded: {self.profile.off}")
        self._stop()
        self._retired = threads.start(self._finish, name="sm-profiler end")  # the process waits for it: see close()
        if self.on_retired is not None and self._source is not None:
            self.on_retired(self._source)

    def _stop(self) -> None:
        with self.guarded("closing"):
            self.tracker.end_step()
        self.slowdown.close(time.perf_counter_ns())
        if self._recorder is not None:
            self._note_missed()
        self.schedule.close()
        self._notify("close")
        self.closed = self.quiet = True
        self.tracker.append = _ignore

    def _finish(self) -> None:
        if self._recorder is not None:
            with self.guarded("closing"):
                self._recorder.at_end = self._complete_last_files
                self._recorder.close()
        self._notify("finish", also_failed=True)

    def _note_missed(self) -> None:
        for name in settings.requested_collectors(self.profile):
            reason = self.schedule.missed(name, time.time()) if name in self.schedule.collectors else None
            if reason is not None:
                self.notes.setdefault(name, reason)

    def end(self, *, exits: bool = True) -> None:
        """Close, and end what outlives the session: the process exits, or the hook is uninstalled."""
        if not self.exiting:
            self.exiting = True
            if exits:
                with self.guarded("end of the process"):
                    steps = self.tracker.completed
                    self._ended = {**how_it_ends(), END_US: self.timebase.now_us(), END_STEP: steps}
            with self.guarded("closing"):  # nothing may be printed after the script's own output
                self.close()
                if self._retired is not None:
                    self._record_end()
            self._notify("exit")

    def leave(self, code: int) -> None:
        """Write what is queued: the process leaves without exit functions, perhaps because a thread hangs.

        With the code 0 it has done its work, so that it may wait for conversions, as at a usual end.
        """
        if not self.is_recording or os.getpid() != self._pid:
            return
        steps = self.tracker.completed
        if self.training_thread() == threading.get_ident():
            self.tracker.end_step()
        self._ended = {**how_it_leaves(code), END_US: self.timebase.now_us(), END_STEP: steps}
        self.recorder.complete_file(LEAVE_SECONDS)
        if not code:
            self._notify("finish", also_failed=True)

    def fail(self, error: BaseException) -> None:
        """Stop recording after an internal error outside any collector; the training continues."""
        self.guard.failed("hook", error)
        self.quiet = True
        if self._recorder is not None:
            self.later(self._recorder.writer.finish)  # with the failure in its record: the exported series of steps end
        self._notify("failed", also_failed=True)

    def _complete_left_files(self) -> None:
        with suppress(OSError):  # a disk that fails is reported where this process's own file is written
            complete(self.root, self.node)

    def _record_end(self) -> None:
        """Write how the process ended, whose last file was finished long before."""
        if self._ended and self._recorder is not None:
            with suppress(OSError):
                write_record(self.root, self.source, self.describe())
                self._leave_exit_code()

    def _complete_last_files(self) -> None:
        self._complete_left_files()
        self._leave_exit_code()

    def _leave_exit_code(self) -> None:
        if self._ended.get(END) == EXITED and parent_process() is None:
            with suppress(OSError):
                record_exit_code(self.root, self.source, self.describe())

    def training_thread_ends(self) -> None:
        """Complete the file: the process may be killed before it can exit, or train again on another thread.

        If another thread trains by now, its step goes on, so scripts that train each step on a new thread still produce few files.
        """
        if not self.is_recording or os.getpid() != self._pid:
            return
        for collector in self._collectors:
            with self.guarded(collector.name):
                collector.thread_ends()
        if self.training_thread() != threading.get_ident():
            return
        self._thread_ends += 1
        if self._thread_ends <= MAX_THREAD_ENDS:
            with self.guarded("closing"):
                self.tracker.end_step()
                self.recorder.complete_file(THREAD_END_SECONDS)

    def _forked(self) -> None:
        """Start over in a forked child, with a recorder of its own from its first step on."""
        try:
            self._starting = threading.RLock()
            if self._recorder is not None:
                self._recorder.writer.abandon()
                self._recorder = None
            self._events, self._ended = deque(), {}
            self.tracker.reset(self._record_first)
            self._pid, self._thread_ends = os.getpid(), 0
            self.controller.reset()
            self.work.reset()
            self.slowdown.reset()
            self._may_be_helper = True
            self.schedule.windows.clear()
            self.schedule.configure(self.profile.collectors)
            self._notify("forked", also_failed=True)
        except Exception as error:  # fail open
            self.fail(error)

    def describe(self) -> dict[str, Any]:
        """Return the metadata record of a trace file."""
        states = dict(self.notes)
        for name in settings.requested_collectors(self.profile):
            if not self.has(name):
                states.setdefault(name, f"unavailable: {UNSUPPORTED}")
        states.update({name: f"failed: {reason}" for name, reason in self.guard.failures.items()})
        recorder, clock, padding = self._recorder, kernel_clock(), self.padding.parts()
        rank = self._known_rank()
        return {
            "version": __version__,
            "framework": self.adapter.framework,
            "node": self.node,
            "rank": rank,
            "world_size": None if rank is None else settings.world_size_from(),
            "pid": os.getpid(),
            "container_us": self._birth.container_us,
            "process_us": self._birth.process_us,
            "loaded_us": self._loaded_us,
            "start_us": self._started_us,
            "clock_offset_us": clock and clock.offset_us,
            "clock_error_us": clock and clock.error_us,
            "clock_jumps": self.timebase.jumps,
            "dropped": recorder.dropped if recorder else 0,
            "left_out": self.left_out,
            "events_cut": self.events_cut,
            "phases_elsewhere": self.elsewhere,
            "disk_error": recorder.writer.error if recorder else "",
            "phases_every": self.tracker.every,
            "collectors": states,
            "uses_gpu": self._uses_gpu(),
            "batch_size": next(iter(self._batch_sizes)) if len(self._batch_sizes) == 1 else None,
            "samples_per_step": self.inputs.per_step(self.inputs.samples),
            "calls_per_step": self.inputs.per_step(self.inputs.calls),
            "input_sizes": self.inputs.sizes or None,
            "collate": self._collate or None,
            "dtype": self.dtype or None,
            "padding": padding[0],
            "padding_of_all": padding[1],
            "padding_inferred": self.padding.inferred or None,
            "num_workers": self._workers if self._workers >= 0 else None,
            "instance_type": read_resources().instance_type,
            "memory_total": memory_total(),
            "shared_mounts": self._birth.shared_mounts,
            "host": self._birth.host,
            "identity": self._birth.identity,
            OOM_KILLS: self._oom_kills,
            **self._ended,
        }

    def _uses_gpu(self) -> bool | None:
        """Return whether any framework of this process uses a GPU; None if one of them may, or nothing was trained yet."""
        states = [adapter.uses_gpu() for adapter in self.adapters]
        if any(states):
            return True
        return False if states and None not in states and self.tracker.train_number > 0 else None


def _ignore(_record: Span) -> None:
    """Take a record when nothing is recorded."""
