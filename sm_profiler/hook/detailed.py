"""The detailed window: a framework's own profiler over whole steps, whose trace is converted by a separate process.

The profiler starts and stops on the training thread at step boundaries.  What starts and stops it is the framework's:
`pytorch.detailed`, `tensorflow.adapter` and `jax.adapter` have a `Profiler` each.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import threading
from _thread import get_native_id
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from sm_profiler.hook import convert
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.own_work import BACKGROUND
from sm_profiler.hook.patches import Patches
from sm_profiler.monitor.scratch import new_folder
from sm_profiler.threads import with_blocked_signals

if TYPE_CHECKING:
    from sm_profiler.hook.modes import ModeKeys
    from sm_profiler.hook.session import Session

DETAILED = "detailed"
SESSION = "ProfilerSession"  # TensorFlow's and JAX's class whose objects profile, for the script as well
CUT_SHORT = "cut short: the script started to profile"
MAX_STEPS = 100  # a longer trace takes too much of the training's memory, and is too large to view
WAY_SECONDS = 5.0  # that a profiler of the script, on another thread, waits for the end of the training's step
ATTEMPTS = 5  # at stopping, each of which may be interrupted
Steps: TypeAlias = list[tuple[int, int]]  # number within the mode, start in microseconds since the epoch; -1 is the end


class Profiler:
    """One framework's profiler; only one may run at a time in a process, the script's or the window's.

    Attributes:
        framework: name in paths.
        trace: format of its traces, for the conversion.
        is_of_thread: only the thread on which it started can stop it.
        entry: owner and name of the function that every start of the framework's profiler calls, the script's as well;
            None if the adapter watches the script's profilers.
    """

    framework: ClassVar[str]
    trace: ClassVar[str] = convert.XPLANE
    is_of_thread: ClassVar[bool] = False
    entry: tuple[Any, str] | None = None

    def is_busy(self) -> bool:
        """Return whether the script profiles."""
        raise NotImplementedError

    def obstacle(self) -> str:
        """Return why the profiler cannot start; "" if it can."""
        return "the script was profiling" if self.is_busy() else ""

    def prepare(self) -> None:
        """Prepare for a window that lies ahead; the profiler was started and stopped once."""

    def start(self, folder: Path) -> Any:
        """Start profiling and return the session; `folder` is for its files."""
        raise NotImplementedError

    def opened(self) -> None:
        """Record what the framework's profiler does not: the window is open."""

    def stop(self, session: Any) -> Callable[[Path], object]:
        """Stop profiling; return what writes the trace to a file, on another thread."""
        raise NotImplementedError

    def detach(self) -> None:
        """Have the stop that follows remove what else would slow the training down after it.

        Not called if the script starts to profile at that moment.
        """

    def beat(self) -> None:
        """Called once a second, on the recorder's thread."""

    def abandon(self) -> None:
        """Stop what an exception of the script has left running that came while the profiler started or stopped.

        It may be called again, and when nothing runs.  A session that ends with its object has stopped already.
        """

    def forked(self, session: Any) -> None:
        """Keep the session that ran in the parent, if any, from being freed: that would stop it.

        Its threads do not exist in the child, and their locks may be held for ever.
        """
        if session is not None:
            _keep(session)


class DetailedWindow(Collector):
    """Records the operators and kernels of the steps in the window."""

    name = DETAILED

    def __init__(self, session: Session, profiler: Profiler) -> None:
        self._session = session
        self._profiler = profiler
        self._prepared = False
        self._thread, self._over = 0, threading.Event()  # on which it started, and when it has stopped
        self._is_asked = False  # to stop, by another thread
        self._running: Any = None  # the framework's session, while the window is open
        self._started = False  # it may run, also without a session if its start or stop was interrupted
        self._folder: Path | None = None  # of its files
        self._first_step = 0
        self._steps: Steps = []
        self._patches = Patches(partial(session.guard.failed, DETAILED))
        self._changing = threading.RLock()  # the script may start to profile on another thread
        self._children: list[convert.Conversion] = []

    @property
    def is_open(self) -> bool:
        """True while the profiler runs."""
        return self._running is not None

    def prepare(self) -> None:
        """Start and stop a profiler: the first start imports modules and initialises libraries for seconds."""
        with self._session.work.doing(f"{DETAILED} window is prepared"), self._changing:
            if self._prepared or self._profiler.obstacle():
                return
            self._prepared = True
            try:
                self._start()
            finally:
                self.failed()
        self._profiler.prepare()

    def enter(self, step: int) -> None:
        """Start the profiler, unless the script profiles."""
        with self._session.work.doing(f"{DETAILED} window starts"), self._changing:
            if reason := self._profiler.obstacle():
                self._session.note(DETAILED, f"left out: {reason}")
                self._session.guard.warn(f"the detailed window is left out: {reason}")
                return
            self._first_step, self._steps = step, []
            try:
                self._start()
                self._watch()
                self._profiler.opened()
            except BaseException:
                self.failed()
                raise

    @contextmanager
    def make_way(self) -> Iterator[None]:
        """Stop the profiler, for the script starts to profile in the block; no window stops late, or starts, meanwhile."""
        if self._is_elsewhere:
            self._is_asked = True
            self._over.wait(WAY_SECONDS)
        with self._changing:
            if self.is_open:
                with self._session.guarded(DETAILED):
                    self._end(CUT_SHORT)
            yield

    @property
    def _is_elsewhere(self) -> bool:
        """True while the profiler runs on another thread, which alone can stop it."""
        return self.is_open and self._profiler.is_of_thread and self._thread != get_native_id()

    def step_begins(self, step: int, mode: ModeKeys) -> bool:  # a trace carries the mode's own number
        """Record the start of a step; end a window that is too long."""
        if not self.is_open:
            return True
        session = self._session
        self._steps.append((session.tracker.number, session.timebase.now_us()))
        too_long = len(self._steps) > MAX_STEPS
        if too_long or (self._is_asked and not (self._is_elsewhere and _is_alive(self._thread))):
            self._end(f"cut after {MAX_STEPS} steps" if too_long else CUT_SHORT)
        return False

    def thread_ends(self) -> None:
        """Stop the profiler on its thread, while that exists."""
        if self.is_open and self._profiler.is_of_thread and not self._is_elsewhere:
            self._end(CUT_SHORT)

    def leave(self, step: int) -> None:  # the life cycle's
        """Stop the profiler, and schedule the conversion of its trace."""
        if self._is_elsewhere:
            self._session.note(DETAILED, CUT_SHORT)
            self._is_asked = True  # its thread stops it at its next step
            if step < 0 or not _is_alive(self._thread):
                self._give_up()
            return
        with self._session.work.doing(f"{DETAILED} window stops"), self._changing:
            running, folder = self._take()
            if running is None or folder is None:
                return
            try:
                with _removed_on_error(folder):
                    if step >= 0:  # neither cut short nor at the end of the training
                        self._profiler.detach()
                    write = self._stop(running)
            except BaseException:
                self.failed()
                raise
            self._steps.append((-1, self._session.timebase.now_us()))
        self._session.later(partial(self._export, write, folder, self._first_step, self._steps))

    def beat(self) -> None:
        """Let the profiler do what it does once a second."""
        self._profiler.beat()

    def forked(self) -> None:
        """Forget the profiler: it is the parent's, and must not be stopped here."""
        running, self._running, self._folder, self._started = self._running, None, None, False
        self._changing, self._over = threading.RLock(), threading.Event()
        self._children = []
        self._patches.remove()
        self._profiler.forked(running)

    def failed(self) -> None:
        """Stop the profiler and discard its trace."""
        with self._changing:
            if self._is_elsewhere:
                self._give_up()
            running, folder = self._take()
            try:
                if running is not None:
                    self._stop(running)
            finally:
                if self._started:
                    _insist(self._profiler.abandon)
                    self._started = False
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)

    def finish(self) -> None:
        """Wait for conversions."""
        if self._is_elsewhere:
            self._give_up()
        for child in self._children:
            if not convert.finish(child):
                self._session.note(DETAILED, "the conversion of the trace took too long")

    # parts

    def _start(self) -> None:
        """Start the profiler; if an exception interrupts that, `failed` stops it."""
        self._folder = new_folder()
        self._thread, self._is_asked = get_native_id(), False
        self._over.clear()
        self._started = True
        self._running = with_blocked_signals(self._profiler.start, self._folder)  # threads of libraries start with it

    def _stop(self, running: Any) -> Callable[[Path], object]:
        write = self._profiler.stop(running)
        self._started = False
        return write

    def _take(self) -> tuple[Any, Path | None]:
        """Return the session and its folder, once: stopped twice, the framework's session would read what it has freed."""
        self._patches.remove()  # first: between the lines after it, nothing can interrupt
        running, folder = self._running, self._folder
        self._running = self._folder = None
        self._over.set()  # what waits for that then waits for the lock
        return running, folder

    def _end(self, reason: str) -> None:
        self._session.note(DETAILED, reason)
        self.leave(-1)
        self._session.schedule.end(DETAILED)

    def _give_up(self) -> None:
        """Leave the profiler to its thread, which may have ended, or wait for this one."""
        running, folder = self._take()
        self._started = False
        _keep(running)
        shutil.rmtree(str(folder), ignore_errors=True)

    def _watch(self) -> None:
        """Make way when the script starts to profile: two sessions at once are an error in every framework."""
        if self._profiler.entry is None:
            return
        owner, name = self._profiler.entry
        original = getattr(owner, name)

        def starts(*args: Any, **kwargs: Any) -> Any:
            with self.make_way():
                return original(*args, **kwargs)

        self._patches.put(owner, name, starts)

    def _export(self, write: Callable[[Path], object], folder: Path, first: int, steps: Steps) -> None:
        """Write the trace and start its conversion, on the recorder's thread."""
        session, profiler, raw = self._session, self._profiler, folder / "raw.trace"
        with session.work.doing(f"{DETAILED} window is exported", BACKGROUND):
            with _removed_on_error(folder):
                write(raw)
            order = {
                "trace": str(raw), "framework": profiler.framework, "root": str(session.root), "source": session.source,
                "pid": os.getpid(), "first_step": first, "steps": steps, "collector": DETAILED, "process": session.describe(),
            }  # fmt: skip
            self._children.append(convert.start(profiler.trace, order))


@contextmanager
def _removed_on_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _insist(action: Callable[[], None]) -> None:
    """Call an action again if an exception of the script interrupts it, as a handler of a timer may do many times."""
    interrupt: BaseException | None = None
    for _ in range(ATTEMPTS):
        try:
            action()
            break
        except BaseException as error:  # raised again
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _is_alive(thread: int) -> bool:
    return any(one.native_id == thread for one in threading.enumerate())


def _keep(session: Any) -> None:
    """Keep a framework's session from being freed, which would stop it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
