"""The Python window: where the interpreter spends its time, from step start to forward end and on to the next step.

A window of its own also lies around the loop: before step 0 and after the last step.  Times are wall, process or off-CPU
time at their real resolution.  Only one profiler can run in an interpreter: where a debugger, coverage or another profiler
is at work already, the window is left out and the report says so.
"""

from __future__ import annotations

import cProfile
import importlib.util
import marshal
import sys
import time
from collections.abc import Callable
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from sm_profiler.config import CollectorConfig
from sm_profiler.formats.layout import StatsWindow, stats_path
from sm_profiler.hook.modes import ModeKeys

if TYPE_CHECKING:
    from sm_profiler.hook.core import Hook

PYTHON = "python"
ROTATION = ("total_time", "cpu_time", "off_cpu_time")
TOOL_ID = 2  # sys.monitoring's number for profilers


def off_cpu() -> float:
    """Seconds that passed without this process having a processor."""
    return time.perf_counter() - time.process_time()


TIMERS: dict[str, Callable[[], float]] = {
    "total_time": time.perf_counter,
    "cpu_time": time.process_time,
    "off_cpu_time": off_cpu,
}


class Session(Protocol):
    """One profiler from start to stop."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End; nothing is written yet."""

    def files(self) -> dict[str, bytes]:
        """File name → content."""


class CProfileSession:
    """The standard library's deterministic profiler."""

    def __init__(self, timer: str) -> None:
        self._profile = cProfile.Profile(TIMERS[timer])

    def start(self) -> None:
        """Begin."""
        self._profile.enable()

    def stop(self) -> None:
        """End."""
        self._profile.disable()

    def files(self) -> dict[str, bytes]:
        """The statistics in pstats' form."""
        self._profile.create_stats()
        return {"python_stats": marshal.dumps(self._profile.stats)}


class PyinstrumentSession:
    """Pyinstrument, version 5 or newer."""

    def __init__(self) -> None:
        from pyinstrument import Profiler  # noqa: PLC0415 - an extra; only where a configuration asks for it

        self._profiler: Any = Profiler(async_mode="disabled")
        self._session: Any = None

    def start(self) -> None:
        """Begin."""
        self._profiler.start()

    def stop(self) -> None:
        """End."""
        self._session = self._profiler.stop()

    def files(self) -> dict[str, bytes]:
        """The session as JSON and as a page."""
        from pyinstrument.renderers import HTMLRenderer, JSONRenderer  # noqa: PLC0415 - as above

        return {
            "python_stats.json": JSONRenderer().render(self._session).encode(),
            "python_stats.html": HTMLRenderer().render(self._session).encode(),
        }


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

    def __init__(
        self,
        root: Path,
        source: Callable[[], str],
        config: CollectorConfig,
        *,
        now_us: Callable[[], int],
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        self._root = root
        self._source = source
        self._config = config
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
        self._start(Point("prestepzero", None, "start", self._now_us()))

    def after_loop(self, mode: str, step: int) -> None:
        """The hook is closed by the script: the last step's session ends, and what follows is watched."""
        self.is_open = False
        here = Point(mode, step, "stepend", self._now_us())
        self._stop(here)
        self._start(Point("posthookclose", None, "start", here.at_us))

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
        if session is not None:
            session.stop()

    def _timer(self) -> str:
        return ROTATION[self._steps % len(ROTATION)] if self._config.timer == "default" else self._config.timer

    def _start(self, point: Point) -> None:
        if (other := other_profiler()) is not None:
            raise RuntimeError(other)
        session: Session
        session = PyinstrumentSession() if self._config.profiler == "pyinstrument" else CProfileSession(self._timer())
        session.start()
        self._session, self._began = session, point

    def _stop(self, point: Point) -> None:
        session, began = self._session, self._began
        self._session = self._began = None
        if session is not None and began is not None:
            session.stop()
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
                path = self._root / stats_path("pytorch", self._config.profiler, self._source(), window, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = path.with_name(path.name + ".tmp")
                temporary.write_bytes(content)
                temporary.rename(path)


def add_python_window(hook: Hook, config: CollectorConfig) -> PythonWindow:
    """Make the window and tie it to a hook's steps; the phase before the loop begins here."""
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

    def step_starts(mode: ModeKeys) -> None:
        failing(lambda: window.step_starts(mode.name.lower(), tracker.number))

    def forward_ends() -> None:
        if window.is_open:
            failing(lambda: window.forward_ends(tracker.mode.name.lower(), tracker.number))

    hook.on_step.append(step_starts)
    tracker.on_forward_end = forward_ends
    hook.on_close.append(
        lambda: failing(
            window.end if hook.exiting else lambda: window.after_loop(tracker.mode.name.lower(), tracker.number)
        )
    )
    hook.on_exit.append(lambda: failing(window.end))
    hook.on_fork.append(window.drop)
    hook.on_broke.append(window.drop)
    if parent_process() is None:  # a loader's worker that was spawned has no loop to come before
        failing(window.before_loop)
    return window
