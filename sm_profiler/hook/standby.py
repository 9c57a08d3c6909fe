"""A hook that is off and stays ready: it starts when the job's configuration file asks for it, while the job runs."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from sm_profiler.config import Profile, load_profile
from sm_profiler.hook import settings
from sm_profiler.hook.other_threads import current_frames, stack_of
from sm_profiler.hook.settings import ConfigText
from sm_profiler.printable import logger_for

logger = logger_for("sm_profiler")

SECONDS = 2.0  # between two looks at the file's time
AGAIN_SECONDS = 0.05
BUSY = (
    "torch",
    "keras",
    "tensorflow",
    "jax",
    "flax",
    "optax",
    "importlib",
)  # their tables must not change while they run
_PENDING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_kept: list[Any] = []  # the interpreter holds no reference to pending calls


class Standby:
    """Looks at a configuration file from a thread, and starts the hook on the main thread, outside of the frameworks.

    Args:
        source: the configuration, by which the hook is off.
        start: installs the hook with a profile.
    """

    def __init__(self, source: ConfigText, start: Callable[[Profile, ConfigText], object]) -> None:
        self._source = source
        self._start = start
        self._ended = threading.Event()
        self._asked = threading.Event()
        self._call = _PENDING(self._on_main_thread)
        self._ready: tuple[Profile, ConfigText] | None = None

    def begin(self) -> None:
        """Start the thread."""
        _kept.append(self._call)
        threading.Thread(target=self._run, name="sm-profiler standby", daemon=True).start()

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(SECONDS):
            self._ready = self.changed()
            if self._ready is None:
                continue
            logger.warning("sm-profiler: the configuration changed: the hook starts, and counts steps from here on")
            while not self._ended.wait(AGAIN_SECONDS):
                self._asked.clear()
                if ctypes.PyDLL(None).Py_AddPendingCall(self._call, None) == 0:
                    self._asked.wait()

    def changed(self) -> tuple[Profile, ConfigText] | None:
        """Return the configuration if it has changed and the hook is on now."""
        path = self._source.path
        try:
            if path is None or path.stat().st_mtime_ns == self._source.changed:
                return None
            self._source = settings.read_config(path)
            profile = load_profile(self._source.text)
        except (OSError, ValueError):  # half a file; the next look reads it again
            return None
        return (profile, self._source) if profile.hook_on else None

    def _on_main_thread(self, _: Any = None) -> int:
        """Start the hook unless a framework runs, between two instructions of the main thread."""
        try:
            if self._ready is not None and not self._ended.is_set() and not in_framework():
                self._ended.set()
                self._start(*self._ready)
        except Exception as error:  # no caller could handle it, and the training continues
            logger.warning("sm-profiler: the hook is off: %s", error)
        self._asked.set()
        return 0


def in_framework() -> bool:
    """Return whether any thread of the script runs code of a framework."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return any(
        str(frame.f_globals.get("__name__", "")).partition(".")[0] in BUSY
        for ident in current_frames()
        if not names.get(ident, "").startswith("sm-pro")
        for frame in stack_of(ident)
    )
