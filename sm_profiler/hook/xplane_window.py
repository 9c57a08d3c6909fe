"""The detailed window of TensorFlow and JAX: their own profiler over whole steps.

Both write an XSpace message (`*.xplane.pb`).  The profiler starts and stops on the training thread at step boundaries;
a process of its own converts the trace to events (`sm_profiler.hook.convert_xplane`).
"""

from __future__ import annotations

import ctypes
import shutil
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm_profiler.hook.detailed_window import DETAILED, DetailedWindow, Steps

if TYPE_CHECKING:
    from sm_profiler.hook.session import Session

SESSION = "ProfilerSession"  # class in `Profiler.module` whose objects profile, for the script as well


class Profiler:
    """One framework's profiler.

    Attributes:
        framework: name in paths.
        module: the framework's module with the class ProfilerSession.
    """

    framework = ""
    module: Any = None

    def is_busy(self) -> bool:
        """Return whether the script profiles."""
        raise NotImplementedError

    def prepare(self) -> None:
        """A window lies ahead."""

    def start(self, folder: Path) -> Any:
        """Start profiling and return the session; `folder` is for its files."""
        raise NotImplementedError

    def stop(self, session: Any) -> Callable[[Path], None]:
        """Stop profiling; return what writes the trace to a file, on another thread."""
        raise NotImplementedError


class XplaneWindow(DetailedWindow):
    """Records the operators and kernels of the steps in the window."""

    def __init__(self, session: Session, profiler: Profiler) -> None:
        super().__init__(session)
        self._profiler = profiler
        self._running: Any = None  # the framework's session, while the window is open
        self._folder: Path | None = None
        self._original: Any = None  # class of sessions, while ours runs
        self._changing = threading.RLock()  # the script may start to profile on a thread of its own

    @property
    def is_open(self) -> bool:
        """True while the profiler runs."""
        return self._running is not None

    def prepare(self) -> None:
        """Start and stop a profiler: the first start loads libraries."""
        if self._prepared or self._profiler.is_busy():
            return
        self._prepared = True
        with self._session.work.doing(f"{DETAILED} window is prepared"):
            folder = _new_folder()
            try:
                self._profiler.stop(self._profiler.start(folder))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        self._profiler.prepare()

    def enter(self, step: int) -> None:
        """Start the profiler, unless the script profiles."""
        with self._session.work.doing(f"{DETAILED} window starts"), self._changing:
            if self._profiler.is_busy():
                self._session.note(DETAILED, "left out: the script was profiling")
                self._session.guard.warn("the detailed window is left out: the script is profiling")
                return
            self._folder = _new_folder()
            self._running = self._profiler.start(self._folder)
            self._first_step, self._steps = step, []
            self._make_way()

    def leave(self, step: int) -> None:  # the life cycle's
        """Stop the profiler, and schedule the conversion of its trace."""
        with self._session.work.doing(f"{DETAILED} window stops"), self._changing:
            running, folder = self._take()
            if running is None or folder is None:
                return
            try:
                write = self._profiler.stop(running)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            self._steps.append((-1, self._session.timebase.now_us()))
        self._export_later(partial(self._export, write, folder))

    def forked(self) -> None:
        """Forget the profiler: it is the parent's, and must neither be stopped nor freed here.

        Freeing it stops it: its threads do not exist in the child, and their locks may be held for ever.
        """
        if self._running is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._running))
        self._changing = threading.RLock()
        self._running = self._folder = None
        self._children, self._converting = [], []
        self._restore()

    def failed(self) -> None:
        """Stop the profiler and discard its trace."""
        with self._changing:
            running, folder = self._take()
            if running is not None:
                self._profiler.stop(running)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    # parts

    def _take(self) -> tuple[Any, Path | None]:
        """Return the session and its folder, once: stopped twice, the framework's session would read what it has freed."""
        running, folder = self._running, self._folder
        self._running = self._folder = None
        self._restore()
        return running, folder

    def _make_way(self) -> None:
        """Stop when the script starts to profile: two sessions at once are an error in both frameworks."""
        module, collector = self._profiler.module, self
        self._original = original = getattr(module, SESSION)

        def session(*args: Any, **kwargs: Any) -> Any:
            with collector._changing:  # no window stops late, or starts, beside the script's session
                try:
                    collector._session.note(DETAILED, "cut short: the script started to profile")
                    collector.leave(-1)
                    collector._session.schedule.end(DETAILED)
                except Exception as error:  # fail open
                    collector._session.guard.failed(DETAILED, error)
                return original(*args, **kwargs)

        setattr(module, SESSION, session)

    def _restore(self) -> None:
        if self._original is not None:
            setattr(self._profiler.module, SESSION, self._original)
            self._original = None

    def _export(self, write: Callable[[Path], None], folder: Path, first: int, steps: Steps) -> None:
        """Write the trace and start its conversion, on the recorder's thread."""
        raw = folder / "raw.xplane.pb"
        try:
            write(raw)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        framework = self._profiler.framework
        self._convert("sm_profiler.hook.convert_xplane", first, steps, trace=str(raw), framework=framework)


def _new_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="sm-profiler-"))
