"""The Python window: where the interpreter spends its time, from step start to forward end and on to the next step.

A window of its own also lies around the loop: before step 0 and after the last step.  Times are wall, process or off-CPU
time at their real resolution.  What is around the loop is watched for a minute at most: loading data may take hours, and
a profiler makes it slower.  Only one profiler can run in an interpreter: where a debugger, coverage or another profiler
is at work already, the window is left out and the report says so.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from sm_profiler.config import CollectorConfig
from sm_profiler.formats.layout import StatsWindow, stats_path
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.python_sessions import CProfileSession, Limit, PyinstrumentSession, Session

if TYPE_CHECKING:
    from sm_profiler.hook.core import Hook

PYTHON = "python"
ROTATION = ("total_time", "cpu_time", "off_cpu_time")
AROUND_SECONDS = 60.0  # before step 0, and after the loop
TOOL_ID = 2  # sys.monitoring's number for profilers


@attrs.frozen
class Point:
    """A point in a training: mode, step (None around the loop), phase, microseconds since the epoch."""

    mode: str
    step: int | None
    phase: str
    at_us: int


def other_profiler() -> str | None:
    """Who else profiles or traces this interpreter, or None."""
    if sys.getprofile() is not None:
        return "another profiler is active"
    if sys.gettrace() is not None:
        return "a debugger or coverage is active"
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(TOOL_ID) is not None:
        return f"{monitoring.get_tool(TOOL_ID)} is active"
    return None


def why_not(config: CollectorConfig) -> str | None:
    """Why this configuration cannot be met, or None."""
    if config.profiler == "pyinstrument" and importlib.util.find_spec("pyinstrument") is None:
        return "pyinstrument is not installed: pip install 'sm-profiler[pyinstrument]'"
    return other_profiler()


class PythonWindow:
    """Runs one session after the other while its window is open; sessions are written when the window is over."""

    def __init__(  # noqa: PLR0913 - each is a part that tests replace
        self,
        root: Path,
        source: Callable[[], str],
        config: CollectorConfig,
        *,
        now_us: Callable[[], int],
        later: Callable[[Callable[[], None]], None],
        limit: Callable[[float, Callable[[], None]], Limit] = Limit,
    ) -> None:
        self._root = root
        self._source = source
        self.config = config
        self.guarded: Callable[[Callable[[], None]], None] = lambda action: action()
        self._new_limit = limit
        self._limit: Limit | None = None  # to the session that runs
        self._cut_us: int | None = None  # the session that runs was stopped then
        self._now_us = now_us
        self._later = later
        self._session: Session | None = None
        self._began: Point | None = None
        self._done: list[tuple[Point, Point, Session]] = []
        self._steps = 0
        self.is_open = False

    # around the loop

    def before_loop(self) -> None:
        """The hook is in place; the first step has not begun."""
        if threading.current_thread() is threading.main_thread():  # where else would the profiler be stopped?
            self._start(Point("prestepzero", None, "start", self._now_us()), AROUND_SECONDS)

    def after_loop(self, mode: str, step: int) -> None:
        """The hook is closed by the script: the last step's session ends, and what follows is watched."""
        self.is_open = False
        here = Point(mode, step, "stepend", self._now_us())
        self._stop(here)
        self._start(Point("posthookclose", None, "start", here.at_us), AROUND_SECONDS)

    def end(self) -> None:
        """The process ends."""
        self.is_open = False
        self._stop(Point("posthookclose", None, "end", self._now_us()))
        self.write()

    # the window

    def enter(self, step: int) -> None:  # noqa: ARG002 - the protocol's
        """The window opens at a step's start."""
        self.is_open = True
        self._steps = 0

    def leave(self, step: int) -> None:  # noqa: ARG002 - the protocol's
        """The window closes at the next step's start."""
        self.is_open = False

    def step_starts(self, mode: str, step: int) -> None:
        """A step starts: what ran ends here, and the next session begins if the window is open."""
        here = Point(mode, step, "stepstart", self._now_us())
        was_running = self._session is not None
        self._stop(here)
        if self.is_open:
            self._start(here)
            self._steps += 1
        elif was_running:
            self._later(self.write)

    def forward_ends(self, mode: str, step: int) -> None:
        """The first outermost forward of a step has ended."""
        if self.is_open and self._began is not None and self._began.phase == "stepstart":
            here = Point(mode, step, "forwardpassend", self._now_us())
            self._stop(here)
            self._start(here)

    def drop(self) -> None:
        """End what runs and forget it."""
        self.is_open = False
        session, self._session, self._began = self._session, None, None
        self._done.clear()
        was_cut, self._cut_us = self._cut_us is not None, None
        self._unlimit()
        if session is not None and not was_cut:
            session.stop()

    def _timer(self) -> str:
        return ROTATION[self._steps % len(ROTATION)] if self.config.timer == "default" else self.config.timer

    def _start(self, point: Point, seconds: float | None = None) -> None:
        if (other := other_profiler()) is not None:
            raise RuntimeError(other)
        session: Session
        session = PyinstrumentSession() if self.config.profiler == "pyinstrument" else CProfileSession(self._timer())
        session.start()
        self._session, self._began = session, point
        if seconds is not None:
            self._limit = self._new_limit(seconds, lambda: self.guarded(lambda: self._cut(point)))

    def _unlimit(self) -> None:
        limit, self._limit = self._limit, None
        if limit is not None:
            limit.cancel()

    def _cut(self, point: Point) -> None:
        """The session that began there has run for long enough: it ends now, in the name of the point where it should."""
        if self._session is not None and self._began is point and self._cut_us is None:
            self._cut_us = self._now_us()
            self._session.stop()

    def _stop(self, point: Point) -> None:
        session, began = self._session, self._began
        self._session = self._began = None
        cut_us, self._cut_us = self._cut_us, None
        self._unlimit()
        if session is None or began is None:
            return
        if cut_us is None:
            session.stop()
        else:
            point = attrs.evolve(point, at_us=cut_us)
        self._done.append((began, point, session))

    def write(self) -> None:
        """Write the sessions that have ended.

        Raises:
            OSError: the disk does not take them.
        """
        done, self._done = self._done, []
        for began, ended, session in done:
            window = StatsWindow(
                began.mode, began.step, began.phase, began.at_us, ended.mode, ended.step, ended.phase, ended.at_us
            )
            for name, content in session.files().items():
                path = self._root / stats_path("pytorch", self.config.profiler, self._source(), window, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = path.with_name(path.name + ".tmp")
                temporary.write_bytes(content)
                temporary.rename(path)


def add_python_window(hook: Hook, config: CollectorConfig, *, before_loop: bool = True) -> PythonWindow:
    """Make the window and tie it to a hook's steps; the phase before the loop begins here, if it is not running yet."""
    tracker = hook.tracker
    window = PythonWindow(
        hook.root,
        lambda: hook.recorder.writer.source,
        config,
        now_us=hook.timebase.now_us,
        later=lambda task: hook.recorder.tasks.append(task),  # noqa: PLW0108 - the recorder starts only with the first step
    )

    def failing(action: Callable[[], None]) -> None:
        if hook.guard.is_off(PYTHON):
            return
        try:
            action()
        except Exception as error:  # noqa: BLE001 - fail open
            window.drop()
            hook.guard.failed(PYTHON, error)

    window.guarded = failing

    def step_starts(mode: ModeKeys) -> None:
        failing(lambda: window.step_starts(mode.name.lower(), tracker.number))

    def forward_ends() -> None:
        if window.is_open:
            failing(lambda: window.forward_ends(tracker.mode.name.lower(), tracker.number))

    def profile_changes() -> None:
        window.config = hook.profile.collectors.get(PYTHON, window.config)

    hook.on_profile.append(profile_changes)
    hook.at_each_step(step_starts)
    tracker.on_forward_end = forward_ends
    hook.on_close.append(
        lambda: failing(
            window.end if hook.exiting else lambda: window.after_loop(tracker.mode.name.lower(), tracker.number)
        )
    )
    hook.on_exit.append(lambda: failing(window.end))
    hook.on_fork.append(window.drop)
    hook.on_broke.append(window.drop)
    if before_loop and parent_process() is None:  # a loader's worker that was spawned has no loop to come before
        failing(window.before_loop)
    return window
