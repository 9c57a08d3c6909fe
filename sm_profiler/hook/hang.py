"""The hang watch: if the steps stop for much longer than ever before, write the Python stacks of all threads.

It runs on the recorder's thread, once a second.  A stop that continues is written again after twice the time, and a record
closes it when training resumes or the process exits.  A stack inside a debugger or a compiler is no hang, and a
process that was suspended as a whole did not wait.

Before the first step there is no usual step time, and no recorder runs: a thread of the watch checks every other second
until a step begins.  A script that has built a model, an optimizer or a process group hangs if its main thread stays at
exactly the same place for twice the shortest stop, while neither this process nor its children use the CPU or do I/O.

A hang may wait for a thread of the script that ended with an exception.  Python passes such an exception to
`threading.excepthook`; it is recorded as text and then passed to the previous function, so that the log has the same
traceback.  A script that installs another function there afterwards is not followed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from sm_profiler import threads
from sm_profiler.formats import recorded
from sm_profiler.formats.recorded import ChildProcess, DeadThread, ThreadStack
from sm_profiler.formats.trace_writer import TraceEvent, span_args
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.frames import Frames, Stack, current_frames, is_library, shown, stack_of
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.patches import Patches
from sm_profiler.hook.process_end import line_and_place
from sm_profiler.hook.rest import CallRest, MarkedRest
from sm_profiler.hook.secrets import masked
from sm_profiler.settings import HANG_SECONDS

if TYPE_CHECKING:
    from types import FrameType

    from sm_profiler.hook.session import Session
    from sm_profiler.hook.steps import StepTracker


TIMES_USUAL = 10.0  # the usual time from step to step
TIMES_LONGEST = 3.0  # the longest stop so far: an evaluation, a checkpoint, a compilation
MIN_STEPS = 3  # the first ones allocate and compile
SUSPENDED = 5.0  # seconds from one beat to the next after which the whole process must have been suspended
MAX_THREADS, MAX_FRAMES, MAX_CHILDREN = 32, 48, 64
BUSY_ELSEWHERE = (  # modules: these stacks are no hang
    "pdb", "bdb", "ipdb", "pudb", "pydevd", "_pydevd_bundle", "debugpy", "IPython.core.debugger", "torch._dynamo.convert_frame",
    "torch._inductor.compile_fx", "torch._inductor.async_compile",
)  # fmt: skip
START_TIMES = 2.0  # the shortest stop: before the first step, downloads and set-up have their pauses
START_SECONDS = 2.0  # between two looks before the first step
START_WINDOW = 10.0  # seconds over which use of the CPU and of files is judged
START_CPU = 0.02  # of a core; a process that waits uses less, the hook and the communication library's threads included
START_BYTES = 100_000.0  # a second, read or written: a download
IN_COLLECTIVE = ("torch.distributed.distributed_c10d", "torch.distributed.rendezvous", "jax._src.distributed")
EVENT_LOOPS = ("asyncio.base_events", "socketserver", "selectors")  # a server or a notebook without a request
TICK = os.sysconf("SC_CLK_TCK")


class HangWatch(Collector):
    """Notices that steps stopped."""

    name = "hang watch"

    def __init__(
        self,
        session: Session,
        clock: Callable[[], float] = time.monotonic,
        work: Callable[[], Work] | None = None,
        frames: Frames = current_frames,
        still_loading: Callable[[], object] = bool,
    ) -> None:
        self._session = session
        self._still_loading = still_loading
        self._minimum: float = HANG_SECONDS.usable()
        self._clock = clock
        self._work_done = work or work_done
        self._frames = frames
        self._recording = threading.Event()
        self._dead = DeadThreads(clock, self._record_dead)
        self._reset()

    def _reset(self) -> None:
        self._seen = (-1, 0)  # progress at the last beat: step, end of the last phase
        self._since: float | None = None  # monotonic seconds of the last progress
        self._cpu = 0.0  # CPU time of the process then
        self._last_beat: float | None = None
        self._first: tuple[int, float] | None = None  # step and time of the first beat
        self._longest = 0.0
        self._next = 0.0  # seconds without progress after which a record is due
        self._open = False  # a record was written, and no step followed
        self._place: tuple[Any, ...] | None = None  # where the training thread was at half the time
        self._same = True
        self._work: Work | None = None  # what the process had done when the wait before the first step began

    def start(self) -> None:
        """End the look at the start: the recorder's thread goes on with it."""
        self._recording.set()

    def watch_start(self) -> None:
        """Look from a thread until the first record starts the recorder."""
        if self._minimum:
            self._dead.install()
            threads.start(self._until_recording, name="sm-profiler start")

    def _until_recording(self) -> None:
        session = self._session
        if not (self._recording.wait(START_SECONDS) or session.quiet):
            self._still_loading()
        while not (self._recording.wait(START_SECONDS) or session.quiet):
            if not session.run(self, self.beat):
                return

    def forked(self) -> None:
        """Start over."""
        self._dead.forget()
        self._reset()

    def beat(self) -> None:
        """Compare the progress with the last beat's."""
        if not self._minimum:
            return
        now, progress = self._clock(), self._session.tracker.progress
        if self._last_beat is not None and now - self._last_beat > SUSPENDED and self._since is not None:
            self._since += now - self._last_beat
        self._last_beat = now
        if progress != self._seen or self._since is None:
            self._advanced(now, progress)
        elif self._session.tracker.global_step >= MIN_STEPS:
            self._stands_still(now)
        elif self._session.tracker.global_step < 0:
            self._has_not_begun(now)

    def close(self) -> None:
        """Write that the process exits, and with which error if it does not handle it."""
        self._recording.set()
        if self._open:
            error = getattr(sys, "last_type", None)
            self._write(self._clock(), "ended", error=getattr(error, "__name__", None))

    def exit(self) -> None:
        """Restore what Python calls when a thread fails."""
        self._dead.remove()

    def _advanced(self, now: float, progress: tuple[int, int]) -> None:
        if self._since is not None and self._seen[0] >= 0:
            self._longest = max(self._longest, now - self._since)
        if self._open:
            self._write(now, "resumed")
        if self._first is None and progress[0] >= 0:
            self._first = progress[0], now
        self._seen, self._since, self._cpu = progress, now, time.process_time()
        self._open, self._next, self._place, self._same, self._work = False, 0.0, None, True, None

    def _limit(self) -> float:
        """Return the seconds of the shortest stop that is reported now."""
        first_step, first_time = self._first or (0, 0.0)
        since = self._since or first_time
        usual = (since - first_time) / max(self._seen[0] - first_step, 1)
        return max(self._minimum, TIMES_USUAL * usual, TIMES_LONGEST * self._longest)

    def _stands_still(self, now: float) -> None:
        waited = now - (self._since or now)
        limit = self._next or self._limit()
        if waited > limit / 2:
            self._compare_place()
        if waited < limit:
            return
        if self._is_busy_elsewhere():
            self._since, self._cpu = now, time.process_time()
            return
        self._next = 2 * limit
        self._open = True
        self._write(now, "hanging")

    def _has_not_begun(self, now: float) -> None:
        """Look at a process before its first step; any sign of work starts the wait anew."""
        session = self._session
        if not any(adapter.is_set_up() for adapter in session.adapters) or session.is_helper():
            self._advanced(now, self._seen)
            return
        stack = stack_of(threading.main_thread().ident, self._frames)
        place = tuple((frame.f_code, frame.f_lasti) for frame in stack)
        in_collective, work = _is_innermost(stack, IN_COLLECTIVE), self._work_done()
        if self._work is None:
            self._place, self._work = place, work
        waited = now - (self._since or now)
        moved = place != self._place or _is_inside(stack, BUSY_ELSEWHERE) or not _waits_for_something(stack)
        # a collective may wait by asking again and again
        works = (
            not in_collective and waited >= min(START_WINDOW, self._minimum) and work.since(self._work).is_busy(waited)
        )
        if moved or works:
            self._advanced(now, self._seen)
            self._place, self._work = place, work
        elif waited >= (self._next or START_TIMES * self._minimum):
            self._next = 2 * (self._next or START_TIMES * self._minimum)
            self._open = True
            self._write(now, "hanging", place=_user_place(stack))

    def _is_busy_elsewhere(self) -> bool:
        """Return whether the main or the training thread is in a debugger or compiles, or a notebook waits for a cell."""
        main = stack_of(threading.main_thread().ident, self._frames)
        if _user_frame(main) is None and _is_inside(main, EVENT_LOOPS):
            return True
        training = stack_of(self._session.adapter.training_thread(), self._frames)
        return _is_inside(main, BUSY_ELSEWHERE) or _is_inside(training, BUSY_ELSEWHERE)

    def _compare_place(self) -> None:
        stack = stack_of(self._session.adapter.training_thread(), self._frames)
        place = tuple((frame.f_code, frame.f_lasti) for frame in stack)
        self._same = self._same and (self._place is None or place == self._place)
        self._place = place

    def _record_dead(self, dead: DeadThread) -> None:
        """Record a thread at once: the training may be ended before its wait for that thread is a hang."""
        session, found = self._session, recorded.ThreadEnd(error=dead.error, where=dead.where)
        args = span_args(os.getpid(), session.tracker.latest_number, found.args())
        session.append_event(TraceEvent(found.phase, dead.name, session.timebase.now_us(), 0, args))

    def _write(self, now: float, state: str, *, place: str = "", error: str | None = None) -> None:
        session = self._session
        since = self._since or now
        waited = now - since
        session.start_recording(waited)
        hangs = state == "hanging"
        found = recorded.Hang(
            state=state,
            waited=round(waited, 1),
            longest=round(self._longest, 1),
            cpu=round((time.process_time() - self._cpu) / max(waited, 1e-3), 3),
            same=self._same,
            error=error,
            threads=stacks(session.adapter.training_thread()) if hangs else None,
            children=children() if hangs else None,
            dead=self._dead.latest() if hangs else None,
            steps=complete_steps(session.tracker),
        )
        start, args = (
            session.timebase.now_us() - int(waited * 1e6),
            span_args(os.getpid(), session.tracker.latest_number, found.args()),
        )
        session.append_event(TraceEvent(found.phase, "hang", start, int(waited * 1e6), args))
        if hangs:
            wait = (
                f"this process has waited at {place} for {_duration(waited)} before the first step"
                if place
                else f"no step for {waited:.0f} s"
            )
            session.guard.warn(f"{wait}; the stacks of all threads are in the profile")
            session.later(session.recorder.writer.finish)  # a finished file is uploaded


def complete_steps(tracker: StepTracker) -> int:
    """Return the training steps that are complete; one that waits after its optimizer's step is."""
    rest, steps = tracker.rest, tracker.train_number + 1
    if isinstance(rest, MarkedRest):
        return steps - int(rest.is_open)
    if rest is not None:
        return steps - int(isinstance(rest, CallRest))
    is_open = tracker.is_open and tracker.mode is ModeKeys.TRAIN and not tracker.after_last_phase
    return steps - (tracker.batches if is_open else 0)


class Work(NamedTuple):
    """Work of this process and its children so far.

    Attributes:
        cpu: seconds of CPU time.
        transferred: bytes that were read and written.
    """

    cpu: float = 0.0
    transferred: float = 0.0

    def since(self, before: Work) -> Work:
        """Return what was done after `before`; children that ended do not count."""
        return Work(self.cpu - before.cpu, self.transferred - before.transferred)

    def is_busy(self, seconds: float) -> bool:
        """Return whether that is more in so many seconds than a process does that waits."""
        return abs(self.cpu) > START_CPU * seconds or abs(self.transferred) > START_BYTES * seconds


def work_done() -> Work:
    """Return what this process and its descendants have done."""
    cpu, transferred, pids, seen = time.process_time(), _transferred("self"), _children_of("self"), 0
    while pids and seen < MAX_CHILDREN:
        pid = pids.pop()
        seen += 1
        try:
            fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
            cpu += (int(fields[11]) + int(fields[12])) / TICK
        except (OSError, ValueError, IndexError):  # a child that ended
            continue
        transferred += _transferred(pid)
        pids += _children_of(pid)
    return Work(cpu, transferred)


def _transferred(pid: str) -> float:
    try:
        lines = Path("/proc", pid, "io").read_text().splitlines()
        return float(sum(int(line.partition(":")[2]) for line in lines if line.startswith(("rchar", "wchar"))))
    except (OSError, ValueError):
        return 0.0


def _children_of(pid: str) -> list[str]:
    found: list[str] = []
    for task in Path("/proc", pid, "task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that ended
            found += task.read_text().split()
    return found


def _waits_for_something(stack: Stack) -> bool:
    """Return whether a line of the script waits; an event loop waits for requests, and libraries alone for anything."""
    return _user_frame(stack) is not None and not _is_innermost(stack, EVENT_LOOPS)


def _is_innermost(stack: Stack, modules: tuple[str, ...]) -> bool:
    """Return whether the frames inside the script's innermost line are in one of the modules."""
    for frame in stack:
        if not is_library(frame.f_code.co_filename):
            return False
        if str(frame.f_globals.get("__name__", "")).startswith(modules):
            return True
    return False


def _user_frame(stack: Stack) -> FrameType | None:
    return next((frame for frame in stack if not is_library(frame.f_code.co_filename)), None)


def _user_place(stack: Stack) -> str:
    found = _user_frame(stack)
    return (
        f"{Path(shown(found.f_code.co_filename)).name}:{found.f_lineno} in {found.f_code.co_name}"
        if found
        else "an unknown line"
    )


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < START_TIMES * HANG_SECONDS.default else f"{seconds / 60:.3g} min"


def stacks(training: int | None) -> tuple[ThreadStack, ...]:
    """Return the stacks of all threads of the script, that of the training first; frames from the innermost outwards.

    Args:
        training: id of the training thread.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for ident in current_frames():
        if threads.is_own(ident):
            continue
        frames = (
            (shown(one.f_code.co_filename), one.f_lineno, one.f_code.co_name) for one in stack_of(ident)[:MAX_FRAMES]
        )
        found.append(ThreadStack(name=names.get(ident, ""), training=ident == training, frames=tuple(frames)))
    return tuple(sorted(found, key=lambda thread: not thread.training)[:MAX_THREADS])


def children() -> tuple[ChildProcess, ...]:
    """Return the state of this process's children, such as loader workers, as the kernel reports it."""
    found = []
    for pid in _children_of("self"):
        try:
            name, _, rest = Path("/proc", pid, "stat").read_text().rpartition(")")
            waits = Path("/proc", pid, "wchan").read_text()
        except OSError:  # a child that ended
            continue
        found.append(ChildProcess(pid=int(pid), name=name.partition("(")[2], state=rest.split()[0], waits_in=waits))
    return tuple(found[:MAX_CHILDREN])


def _is_inside(stack: Stack, modules: tuple[str, ...]) -> bool:
    names = (str(frame.f_globals.get("__name__", "")) for frame in stack)
    return any(name == module or name.startswith(f"{module}.") for name in names for module in modules)


MAX_DEAD = 16  # threads that ended with an exception, the latest


class DeadThreads:
    """Records the threads of the script that end with an exception, from `install` to `remove`."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_end: Callable[[DeadThread], object] = bool,  # is given the first ones
    ) -> None:
        self._clock, self._on_end = clock, on_end
        self._found: deque[tuple[float, DeadThread]] = deque(maxlen=MAX_DEAD)  # and the seconds of the clock then
        self._patches = Patches(lambda _error: None)

    def install(self) -> None:
        """Start recording."""
        self._patches.around(threading, "excepthook", self._called)

    def remove(self) -> None:
        """Stop, and restore the previous function."""
        self._patches.remove()

    def forget(self) -> None:
        """Start over in a forked child, which has none of these threads."""
        self._found.clear()

    def latest(self) -> tuple[DeadThread, ...]:
        """Return the threads, the latest first."""
        now = self._clock()
        return tuple(attrs.evolve(dead, ago=round(max(now - at, 0.0), 1)) for at, dead in reversed(self._found.copy()))

    def _called(self, args: Any) -> None:
        self._record(args.exc_value, args.thread)

    def _record(self, error: BaseException | None, thread: threading.Thread | None) -> None:
        name = thread.name if thread is not None else ""
        if error is None or isinstance(error, SystemExit):
            return
        line, place = line_and_place(error, masked)
        dead = DeadThread(name=name, error=line, where=place)
        is_first = len(self._found) < MAX_DEAD
        self._found.append((self._clock(), dead))
        if is_first:
            self._on_end(dead)
