"""The hang watch: if the steps stop for much longer than ever before, write the Python stacks of all threads.

It runs on the recorder's thread, once a second.  A stop that goes on is written again after twice the time, and a record
closes it when training goes on or the process exits.  A stack that is in a debugger or in a compiler is no hang, and a
process that was suspended as a whole did not wait.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from sm_profiler.formats.event_names import HANG
from sm_profiler.formats.trace_writer import TraceEvent, span_args
from sm_profiler.hook.collector import Collector

if TYPE_CHECKING:
    from sm_profiler.hook.session import Session

SECONDS_VARIABLE = "SM_PROFILER_HANG_SECONDS"
SECONDS = 60.0  # shorter stops are never reported; 0 in the variable switches the watch off
TIMES_USUAL = 10.0  # the usual time from step to step
TIMES_LONGEST = 3.0  # the longest stop so far: an evaluation, a checkpoint, a compilation
MIN_STEPS = 3  # the first ones allocate and compile
SUSPENDED = 5.0  # seconds from one beat to the next after which the whole process must have been suspended
MAX_THREADS, MAX_FRAMES, MAX_CHILDREN = 32, 48, 64
BUSY_ELSEWHERE = (  # modules: these stacks are no hang
    "pdb", "bdb", "ipdb", "pudb", "pydevd", "_pydevd_bundle", "debugpy", "IPython.core.debugger", "torch._dynamo.convert_frame",
    "torch._inductor.compile_fx", "torch._inductor.async_compile",
)  # fmt: skip


def minimum(environment: dict[str, str] | None = None) -> float:
    """Return the seconds of the shortest stop to report, 0 if none is to be reported."""
    text = (os.environ if environment is None else environment).get(SECONDS_VARIABLE, "")
    try:
        return max(float(text), 0.0) if text else SECONDS
    except ValueError:
        return SECONDS


class HangWatch(Collector):
    """Notices that steps stopped."""

    name = "hang watch"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._minimum = minimum()
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

    def forked(self) -> None:
        """Start over."""
        self._reset()

    def beat(self) -> None:
        """Compare the progress with the last beat's."""
        if not self._minimum:
            return
        now, progress = time.monotonic(), self._session.tracker.progress
        if self._last_beat is not None and now - self._last_beat > SUSPENDED and self._since is not None:
            self._since += now - self._last_beat
        self._last_beat = now
        if progress != self._seen or self._since is None:
            self._advanced(now, progress)
        elif self._session.tracker.global_step >= MIN_STEPS:
            self._stands_still(now)

    def close(self) -> None:
        """Write that the process exits; with which error, if it does not handle one."""
        if self._open:
            error = getattr(sys, "last_type", None)
            self._write(time.monotonic(), "ended", error=getattr(error, "__name__", None))

    def _advanced(self, now: float, progress: tuple[int, int]) -> None:
        if self._since is not None and self._seen[0] >= 0:
            self._longest = max(self._longest, now - self._since)
        if self._open:
            self._write(now, "resumed")
        if self._first is None:
            self._first = progress[0], now
        self._seen, self._since, self._cpu = progress, now, time.process_time()
        self._open, self._next, self._place, self._same = False, 0.0, None, True

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

    def _is_busy_elsewhere(self) -> bool:
        """Return whether the main or the training thread is in a debugger or compiles."""
        frames = sys._current_frames()  # noqa: SLF001 - the only way
        threads = threading.main_thread().ident, self._session.adapter.training_thread()
        return any(_is_inside(frames.get(thread or 0), BUSY_ELSEWHERE) for thread in threads)

    def _compare_place(self) -> None:
        frames = sys._current_frames()  # noqa: SLF001 - the only way
        frame = frames.get(self._session.adapter.training_thread() or 0)
        place = tuple((one.f_code, one.f_lasti) for one in _outwards(frame))
        self._same = self._same and (self._place is None or place == self._place)
        self._place = place

    def _write(self, now: float, state: str, **more: Any) -> None:
        session = self._session
        since = self._since or now
        waited = now - since
        args: dict[str, Any] = {
            "state": state,
            "waited": round(waited, 1),
            "longest": round(self._longest, 1),
            "cpu": round((time.process_time() - self._cpu) / max(waited, 1e-3), 3),
            "same": self._same,
            **{key: value for key, value in more.items() if value is not None},
        }
        if state == "hanging":
            args["threads"] = stacks(session.adapter.training_thread())
            args["children"] = children()
        start = session.timebase.now_us() - int(waited * 1e6)
        session.append_event(
            TraceEvent(HANG, "hang", start, int(waited * 1e6), span_args(os.getpid(), session.tracker.number, args))
        )
        if state == "hanging":
            session.guard.warn(f"no step for {waited:.0f} s; the stacks of all threads are in the profile")
            session.later(session.recorder.writer.finish)  # a finished file is uploaded


def stacks(training: int | None) -> list[dict[str, Any]]:
    """Return the stacks of all threads of the script, that of the training first; frames from the innermost outwards.

    Args:
        training: id of the training thread.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the only way
        name = names.get(ident, "")
        if name.startswith("sm-profiler") or ident == threading.get_ident():
            continue
        frames = [[one.f_code.co_filename, one.f_lineno, one.f_code.co_name] for one in _outwards(frame)]
        found.append({"name": name, "training": ident == training, "frames": frames[:MAX_FRAMES]})
    return sorted(found, key=lambda thread: not thread["training"])[:MAX_THREADS]


def children() -> list[dict[str, Any]]:
    """Return the state of this process's children, such as loader workers, as the kernel reports it."""
    found = []
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            pids = task.read_text().split()
        except OSError:  # a thread that ended
            continue
        for pid in pids:
            try:
                name, _, rest = Path("/proc", pid, "stat").read_text().rpartition(")")
                waits = Path("/proc", pid, "wchan").read_text()
            except OSError:  # a child that ended
                continue
            found.append({"pid": int(pid), "name": name.partition("(")[2], "state": rest.split()[0], "waits_in": waits})
    return found[:MAX_CHILDREN]


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_inside(frame: FrameType | None, modules: tuple[str, ...]) -> bool:
    names = (str(one.f_globals.get("__name__", "")) for one in _outwards(frame))
    return any(name == module or name.startswith(f"{module}.") for name in names for module in modules)
