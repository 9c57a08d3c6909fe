"""The Python window: which functions take the time, from step start to forward end and on to the next step.

A step that does not end closes the window.  Two more profiles cover the time around the loop: before step 0 and after the
last step.  Times are wall, process or off-CPU time at their real resolution.  Around the loop a profile lasts a minute at
most: loading data may take hours, and a profiler slows it down.  An interpreter runs one profiler at a time: if a
debugger, coverage or another profiler is active, the window is left out, and the report lists why.
"""

from __future__ import annotations

import contextlib
import cProfile
import ctypes
import importlib.util
import itertools
import marshal
import operator
import shutil
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from cProfile import label
from multiprocessing import parent_process
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from sm_profiler import threads
from sm_profiler.config import CollectorConfig, Profile
from sm_profiler.descriptors import written_whole
from sm_profiler.formats.layout import StatsWindow, stats_path
from sm_profiler.hook import convert
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.guard import run_bounded
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.own_work import BACKGROUND
from sm_profiler.hook.recorder import DISK_SECONDS
from sm_profiler.monitor.scratch import new_folder

if TYPE_CHECKING:
    from sm_profiler.hook.session import Session


# Statistics of cProfile, as the bytes that `dump_stats` writes.  `Profile.create_stats` makes hundreds of thousands of
# tuples and dictionaries, which start garbage collections that the training waits for; this makes hardly any.


PLAIN = 2  # version of marshal without references, which are written here
REFERABLE = 0x80  # flag of a type: references may point to the object
FIGURES_START = b"(" + struct.pack("<i", 5)  # a tuple of four numbers and the callers
_call = struct.Struct("<iqqdd")  # number of the caller's name, calls, primitive calls, own and cumulative time


def marshalled(entries: Sequence[Any]) -> bytes:
    """Return the statistics of `Profile.getstats()` as marshal data: function → calls, times and callers.

    Functions of the same name are merged, as in `create_stats`: the figures of the last stay.
    """
    names: dict[bytes, int] = {}
    numbers: dict[int, int] = {}  # id of a function's code → number of its name
    calls: dict[int, bytearray] = {}  # the same → its callers
    for entry in entries:
        key = id(entry.code)
        numbers[key] = names.setdefault(marshal.dumps(label(entry.code), PLAIN), len(names))
        calls[key] = bytearray()
    for entry in entries:
        for call in entry.calls or ():
            into = calls.get(id(call.code))
            if into is not None:
                primitive = call.callcount - call.reccallcount
                into += _call.pack(numbers[id(entry.code)], call.callcount, primitive, call.inlinetime, call.totaltime)
    return _joined(entries, list(names), numbers, calls)


def _joined(entries: Sequence[Any], names: list[bytes], numbers: dict[int, int], calls: dict[int, bytearray]) -> bytes:
    written: dict[int, int] = {}  # number of a name → its reference
    data = bytearray(b"{")

    def name(number: int) -> bytes:
        reference = written.get(number)
        if reference is not None:
            return b"r" + struct.pack("<i", reference)
        written[number] = len(written)
        return bytes((names[number][0] | REFERABLE,)) + names[number][1:]

    for entry in entries:
        key = id(entry.code)
        data += name(numbers[key])
        data += FIGURES_START
        for figure in (entry.callcount - entry.reccallcount, entry.callcount, entry.inlinetime, entry.totaltime):
            data += marshal.dumps(figure, PLAIN)
        data += b"{"
        for caller, figures in _merged(calls[key]):
            data += name(caller)
            data += figures
        data += b"0"
    return bytes(data + b"0")


def _merged(calls: bytearray) -> Iterator[tuple[int, bytes]]:
    """Yield the callers of a function with their figures; those of the same name are added up."""
    callers = [call[0] for call in _call.iter_unpack(calls)]
    if len(set(callers)) == len(callers):
        for caller, *figures in _call.iter_unpack(calls):
            yield caller, marshal.dumps(tuple(figures), PLAIN)
        return
    sums: dict[int, tuple[Any, ...]] = {}
    for caller, *figures in _call.iter_unpack(calls):
        known = sums.get(caller, (0, 0, 0.0, 0.0))
        sums[caller] = tuple(a + b for a, b in zip(known, figures, strict=True))
    for caller, total in sums.items():
        yield caller, marshal.dumps(total, PLAIN)


# Profilers, each used for one run (`name` is in requests and in paths), and a time limit for such a run.


# Seconds during which this process had no processor.  Not a Python function: the profiler would call it twice per call,
# and the interpreter tends to run pending calls (see TimeLimit) inside it, where the profiler must not be stopped.
off_cpu: Callable[[], float] = map(operator.sub, iter(time.perf_counter, None), iter(time.process_time, None)).__next__

TIMERS: dict[str, Callable[[], float]] = {  # besides total_time, which cProfile measures itself, at half the cost
    "cpu_time": time.process_time,
    "off_cpu_time": off_cpu,
}


RAW_SESSION = "python_stats.session"

_PENDING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_calls: list[Any] = []  # the interpreter holds no reference to pending calls
AGAIN_SECONDS = 0.05
MAX_TRIES = 1000  # a few microseconds each


def in_profiler(frame: FrameType | None) -> bool:
    """Return whether the interpreter is inside a profiler's callback, where that profiler must not be stopped."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("pyinstrument"):
            return True
        frame = frame.f_back
    return False


class TimeLimit:
    """Calls a function on the main thread after some time, unless cancelled.

    A profiler is bound to the thread that it profiles and can only be stopped there.  A sleeping thread costs nothing
    while the profiler runs, and leaves the script's signals alone.
    """

    def __init__(self, seconds: float, reached: Callable[[], None]) -> None:
        self._seconds = seconds
        self._reached = reached
        self._done = False
        self._over = threading.Lock()  # locks only: a fork may happen in any state
        self._over.acquire()
        self._answer = threading.Lock()
        self._answer.acquire()
        self._add = ctypes.PyDLL(None).Py_AddPendingCall  # the main thread runs pending calls between two instructions
        self._add.argtypes = (_PENDING, ctypes.c_void_p)
        self._tries = 0
        self._call = _PENDING(self._answered)
        _calls.append(self._call)
        threads.start(self._run, name="sm-profiler-limit")

    def cancel(self) -> None:
        """Do not call the function."""
        with contextlib.suppress(RuntimeError):  # already cancelled
            self._over.release()

    def _run(self) -> None:
        """Wait, then schedule the call until it has run; on a separate thread."""
        wait = self._seconds
        while not self._done and not self._over.acquire(timeout=wait):
            wait = AGAIN_SECONDS
            if self._add(self._call, None) == 0:  # otherwise too many calls are pending
                self._answer.acquire()

    def _answered(self, _: Any) -> int:
        """Run on the main thread, as a pending call."""
        if in_profiler(sys._getframe()):  # only the stack shows it
            self._tries += 1  # the callback returns after a few instructions
            if self._tries % MAX_TRIES and self._add(self._call, None) == 0:
                return 0
        else:
            self._done = True
            with contextlib.suppress(Exception):  # no caller could handle it; the function guards itself
                self._reached()
        self._answer.release()
        return 0


class _Place:
    """The place of this thread's profiler: the script may put its own profiler there while ours runs."""

    def __init__(self) -> None:
        self._own = sys.getprofile()  # called after ours has started

    @contextlib.contextmanager
    def cleared(self) -> Iterator[None]:
        """Let our profiler stop, which clears the place even of another profiler, and put the script's back."""
        there: Any = sys.getprofile()
        try:
            yield
        finally:
            if there is not None and there is not self._own and sys.getprofile() is not there:
                if isinstance(there, cProfile.Profile):
                    there.enable()
                else:
                    sys.setprofile(there)


class CProfile:
    """The standard library's deterministic profiler."""

    name = "cprofile"

    def __init__(self, timer: str) -> None:
        self._profile = cProfile.Profile(TIMERS[timer]) if timer in TIMERS else cProfile.Profile()

    def start(self) -> None:
        """Start."""
        self._profile.enable()
        self._place = _Place()

    def stop(self) -> None:
        """Stop."""
        with self._place.cleared():
            self._profile.disable()

    def files(self) -> dict[str, bytes]:
        """Return the statistics in the format of pstats."""
        return {"python_stats": marshalled(self._profile.getstats())}


class Pyinstrument:
    """Pyinstrument, version 5 or newer."""

    name = "pyinstrument"

    def __init__(self) -> None:
        from pyinstrument import Profiler  # an optional dependency

        self._profiler: Any = Profiler(async_mode="disabled")
        self._session: Any = None

    def start(self) -> None:
        """Start."""
        self._profiler.start()
        self._place = _Place()

    def stop(self) -> None:
        """Stop."""
        with self._place.cleared():
            self._session = self._profiler.stop()

    def files(self) -> dict[str, bytes]:
        """Return the raw session, which `render_pyinstrument` renders: that takes seconds for a profile of imports."""
        return {RAW_SESSION: marshal.dumps(self._session.to_json())}


PythonProfiler: TypeAlias = CProfile | Pyinstrument


# The collector.


PYTHON = "python"
ROTATION = ("total_time", "cpu_time", "off_cpu_time")
AROUND_SECONDS = 60.0  # before step 0, and after the loop
STEP_SECONDS = 10.0  # a profiled step may take, and as many times the usual step as follows, whichever is longer
STEP_TIMES = 10.0
WRITE_SECONDS = 0.02  # a beat: rendering competes with the training for the interpreter
TOOL_ID = 2  # number of profilers in sys.monitoring
# Profilers of the time around the loop are never freed.  Their entries, some MB, lie between all objects that the imports
# created; freed, they leave holes that the loop's objects would fill, far apart: steps with many small calls took 20 % longer.
_kept: list[PythonProfiler] = []


@attrs.frozen
class Point:
    """A point in a training: mode, step (None around the loop), phase, microseconds since the epoch."""

    mode: str
    step: int | None
    phase: str
    at_us: int


def other_profiler() -> str | None:
    """Return which other tool profiles or traces this interpreter, or None."""
    if sys.getprofile() is not None:
        return "another profiler is active"
    if sys.gettrace() is not None:
        return "a debugger or coverage is active"
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(TOOL_ID) is not None:
        return f"{monitoring.get_tool(TOOL_ID)} is active"
    return None


def obstacle(config: CollectorConfig) -> str | None:
    """Return why this configuration cannot be met, or None."""
    if config.profiler == "pyinstrument" and importlib.util.find_spec("pyinstrument") is None:
        return "pyinstrument is not installed: pip install 'sm-profiler[pyinstrument]'"
    return other_profiler()


class PythonStarter(Collector):
    """Adds the Python collector once a configuration asks for it: at the start, or while the job runs."""

    name = "start of the Python window"

    def __init__(self, session: Session) -> None:
        self._session = session

    def profile_changed(self, profile: Profile) -> None:  # the session has it
        """Add the collector if the changed profile has a Python window."""
        self.add()

    def add(self, *, before_loop: bool = False) -> None:
        """Add the collector if it is configured and possible.

        Args:
            before_loop: profile the time before the first step as well.
        """
        session = self._session
        config = session.profile.collectors.get(PYTHON)
        if config is None or session.has(PYTHON):
            return
        reason = obstacle(config)
        if reason is not None:
            session.note(PYTHON, f"unavailable: {reason}")
            session.guard.warn(f"the Python window is left out: {reason}")
            return
        session.notes.pop(PYTHON, None)
        collector = PythonCollector(session, config)
        session.add(collector)
        if before_loop and parent_process() is None:  # a spawned loader worker has no loop
            session.run(collector, collector.before_loop)


class PythonCollector(Collector):
    """Runs one profiler after the other while its window is open, and writes their results when the window is over."""

    name = PYTHON

    def __init__(
        self,
        session: Session,
        config: CollectorConfig,
        *,
        limit: Callable[[float, Callable[[], None]], TimeLimit] = TimeLimit,
    ) -> None:
        self._session = session
        self._config = config
        self._new_limit = limit
        self._limit: TimeLimit | None = None  # of the profiler that runs
        self._cut_us: int | None = None  # when that profiler reached its limit
        self._profiler: PythonProfiler | None = None
        self._began: Point | None = None
        self._done: deque[tuple[Point, Point, PythonProfiler]] = deque()
        self._raw: list[tuple[str, str]] = []  # sessions to render: file, and path of the result without its ending
        self._folder: Path | None = None  # of these files
        self._number = itertools.count()
        self._children: list[convert.Conversion] = []  # that render
        self._steps = 0
        self._is_open = False
        self._on_main_thread = False  # where the profiler runs

    # around the loop

    def before_loop(self) -> None:
        """Profile the time before the first step."""
        if threads.is_main():  # a profiler can only be stopped on its thread
            self._start(Point("prestepzero", None, "start", self._now_us()), AROUND_SECONDS)

    def close(self) -> None:
        """Stop the last step's profiler; if the script goes on, profile what follows."""
        self._is_open = False
        if self._session.exiting:
            self.exit()
            return
        tracker = self._session.tracker
        here = Point(tracker.mode.name.lower(), tracker.number, "stepend", self._now_us())
        self._stop(here)
        self._start(Point("posthookclose", None, "start", here.at_us), AROUND_SECONDS)

    def exit(self) -> None:
        """Stop the last profiler and write all results."""
        self._is_open = False
        self._stop(Point("posthookclose", None, "end", self._now_us()))
        if self._session.is_recording:
            self._session.later(self.write_all)  # the recorder waits for a hanging disk, and not for ever
        elif self._done:
            run_bounded(self.write_all, DISK_SECONDS, "the disk does not answer")

    # the window

    def enter(self, step: int) -> None:  # the life cycle's
        """Open the window at the start of a step."""
        self._is_open = True
        self._steps = 0

    def leave(self, step: int) -> None:  # the life cycle's
        """Close the window at the start of the next step."""
        self._is_open = False

    def step_begins(self, step: int, mode: ModeKeys) -> bool:  # profiles carry the mode's own number
        """Stop the running profiler; start the next one if the window is open."""
        here = Point(mode.name.lower(), self._session.tracker.number, "stepstart", self._now_us())
        was_running = self._profiler is not None
        if was_running or self._is_open:
            with self._session.work.doing(f"{PYTHON} window: profilers turn"):
                self._stop(here)
                if self._is_open:
                    self._start(here)
                    self._steps += 1
        if was_running and not self._is_open:
            self._session.later(self.write)
        return not self._is_open

    def beat(self) -> None:
        """Write more results; close the window, on the main thread, if its step does not end."""
        if not self._is_open:
            self.write()
        point = self._began
        if self._is_open and self._limit is None and point is not None and self._on_main_thread:
            usual = self._session.slowdown.usual_ns(self._session.tracker.mode) or 0.0
            if self._now_us() - point.at_us > 1e6 * max(STEP_SECONDS, STEP_TIMES * usual / 1e9):
                self._limit = self._new_limit(0.0, lambda: self._reach_step_limit(point))

    def _reach_step_limit(self, point: Point) -> None:
        if not self._session.guard.is_off(PYTHON):
            self._session.run(self, self._end_at_limit, point)

    def _end_at_limit(self, point: Point) -> None:
        """Close the window in the middle of a step."""
        if self._is_open and self._began is point:
            self._session.note(PYTHON, f"ended early: no step began for {(self._now_us() - point.at_us) / 1e6:.0f} s")
            self._is_open = False
            self._stop(attrs.evolve(point, phase="stepend", at_us=self._now_us()))
            self._session.schedule.end(PYTHON)
            self._session.later(self.write)

    def forward_ends(self) -> None:
        """Start the second profiler of a step after its first outermost forward."""
        if self._is_open and self._began is not None and self._began.phase == "stepstart":
            tracker = self._session.tracker
            here = Point(tracker.mode.name.lower(), tracker.number, "forwardpassend", self._now_us())
            with self._session.work.doing(f"{PYTHON} window: profilers turn"):
                self._stop(here)
                self._start(here)

    def profile_changed(self, profile: Profile) -> None:
        """Use the changed profiler and timer from the next start on."""
        self._config = profile.collectors.get(PYTHON, self._config)

    def forked(self) -> None:
        """Stop and discard the parent's profiler and its results."""
        self._raw, self._folder, self._children = [], None, []
        self.failed()

    def failed(self) -> None:
        """Stop and discard the running profiler."""
        self._is_open = False
        profiler, self._profiler, self._began = self._profiler, None, None
        self._done.clear()
        was_cut, self._cut_us = self._cut_us is not None, None
        self._cancel_limit()
        if profiler is not None and not was_cut:
            profiler.stop()

    def finish(self) -> None:
        """Wait for the rendering of results."""
        for child in self._children:
            if not convert.finish(child):
                self._session.note(PYTHON, "rendering took too long")
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # parts

    def _now_us(self) -> int:
        return self._session.timebase.now_us()

    def _timer(self) -> str:
        return ROTATION[self._steps % len(ROTATION)] if self._config.timer == "default" else self._config.timer

    def _start(self, point: Point, seconds: float | None = None) -> None:
        if (other := other_profiler()) is not None:
            raise RuntimeError(other)
        profiler = Pyinstrument() if self._config.profiler == Pyinstrument.name else CProfile(self._timer())
        profiler.start()
        self._profiler, self._began = profiler, point
        self._on_main_thread = threads.is_main()
        if seconds is not None:
            _kept.append(profiler)
            self._limit = self._new_limit(seconds, lambda: self._reach_limit(point))

    def _reach_limit(self, point: Point) -> None:
        if not self._session.guard.is_off(PYTHON):
            self._session.run(self, self._cut, point)

    def _cancel_limit(self) -> None:
        limit, self._limit = self._limit, None
        if limit is not None:
            limit.cancel()

    def _cut(self, point: Point) -> None:
        """Stop the profiler that was started at `point`; its folder is named after the point where it should end."""
        if self._profiler is not None and self._began is point and self._cut_us is None:
            self._cut_us = self._now_us()
            self._profiler.stop()

    def _stop(self, point: Point) -> None:
        profiler, began = self._profiler, self._began
        self._profiler = self._began = None
        cut_us, self._cut_us = self._cut_us, None
        self._cancel_limit()
        if profiler is None or began is None:
            return
        if cut_us is None:
            profiler.stop()
        else:
            point = attrs.evolve(point, at_us=cut_us)
        self._done.append((began, point, profiler))

    def write(self) -> None:
        """Write results of stopped profilers for a moment, on the recorder's thread; the next beats write the others.

        Raises:
            OSError: a file cannot be written.
        """
        self._write(time.perf_counter() + WRITE_SECONDS)

    def write_all(self) -> None:
        """Write all results, as the process exits.

        Raises:
            OSError: a file cannot be written.
        """
        self._write(float("inf"))

    def _write(self, until: float) -> None:
        if self._done or self._raw:
            with self._session.work.doing(f"{PYTHON} window is written", BACKGROUND):
                while self._done:
                    self._write_one(*self._done.popleft())
                    if time.perf_counter() >= until:
                        break
                if self._raw and (until == float("inf") or all(child.poll() is not None for child in self._children)):
                    order, self._raw = {"sessions": self._raw}, []
                    self._children.append(convert.start(convert.PYINSTRUMENT, order))

    def _write_one(self, began: Point, ended: Point, profiler: PythonProfiler) -> None:
        session = self._session
        window = StatsWindow(
            began.mode, began.step, began.phase, began.at_us, ended.mode, ended.step, ended.phase, ended.at_us
        )
        for name, content in profiler.files().items():
            place = stats_path(session.adapter.framework, profiler.name, session.source, window, name)
            path = session.root / place
            if name == RAW_SESSION:
                self._folder = self._folder or new_folder()
                raw = self._folder / f"{next(self._number)}"
                raw.write_bytes(content)
                self._raw.append((str(raw), str(path.with_suffix(""))))
                continue
            with written_whole(path) as temporary:
                temporary.write_bytes(content)
