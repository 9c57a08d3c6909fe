"""The Horovod window: Horovod's own timeline, switched on before Horovod starts, of which the window's part becomes ours.

Only the first rank has such a timeline; Horovod writes all of it from its start to its end, into a file that stays behind.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from sm_profiler.formats.layout import FRAMEWORK, IGNORED_FOLDER
from sm_profiler.hook import conversion

if TYPE_CHECKING:
    from sm_profiler.hook.core import Hook

HOROVOD = "horovod"
VARIABLE = "HOROVOD_TIMELINE"
PATIENCE_SECONDS = 20
MAX_BYTES = 1 << 30  # of Horovod's own file, before the window is over
MAX_BYTES_AFTER = 64 << 20


class HorovodWindow:
    """Notes when the window opens and closes, and has that part converted by a process of its own."""

    def __init__(self, hook: Hook, timeline: Path, *, ours: bool) -> None:
        self._hook = hook
        self._timeline = timeline
        self._ours = ours
        self._start_us = 0
        self._over = False
        self._cut = False  # Horovod's file lacks its beginning
        self._children: list[subprocess.Popen[bytes]] = []

    def enter(self, step: int) -> None:  # noqa: ARG002 - the protocol's
        """The window opens."""
        self._start_us = self._hook.timebase.now_us()

    def leave(self, step: int) -> None:  # noqa: ARG002 - the protocol's
        """The window closes at the next step's start, or with the job."""
        hook, at_us = self._hook, self._hook.timebase.now_us()
        self._over = True
        if not self._ours and hook.rank not in {0, None}:  # all ranks name the file, the first one writes it
            return
        if self._cut:
            hook.notes[HOROVOD] = "left out: the names in Horovod's timeline went with its first window"
            return
        order = {
            "timeline": str(self._timeline),
            "root": str(hook.root),
            "start_us": self._start_us,
            "end_us": at_us,
            "patience_s": PATIENCE_SECONDS,
            "monotonic_us": hook.timebase.now_us() - time.monotonic_ns() // 1000,
            "pid": os.getpid(),
        }
        hook.recorder.tasks.append(lambda: self._convert(order))

    def _convert(self, order: dict[str, object]) -> None:
        """On the background thread."""
        if not self._timeline.exists():  # no rank but the first has one
            return
        order["source"] = self._hook.recorder.writer.source
        self._children.append(conversion.start("sm_profiler.hook.convert_horovod", order, without=(VARIABLE,)))

    def look(self) -> None:
        """Once a second, on the background thread: Horovod's file must not fill the disk.

        Horovod writes on where it was, so that what is cut away is a hole in the file and takes no room.
        """
        if not self._ours:
            return
        try:
            size = self._timeline.stat().st_blocks * 512
            converted = self._over and all(child.poll() is not None for child in self._children)
            if size > MAX_BYTES and not self._over:
                self._hook.notes[HOROVOD] = "left out: Horovod wrote a gigabyte before the window was over"
                self._hook.guard.failed(HOROVOD, RuntimeError("its timeline is larger than a gigabyte"))
                self._over = True
            elif size <= MAX_BYTES_AFTER or not converted:
                return
            self._cut = True
            os.truncate(self._timeline, 0)
        except OSError:
            return  # not there (yet)

    def wait(self) -> None:
        """The training ends: let conversions finish, and take away what only they needed."""
        for child in self._children:
            if not conversion.finish(child):
                self._hook.notes[HOROVOD] = "the conversion of the timeline took too long"
        if self._ours:
            if os.environ.get(VARIABLE) == str(self._timeline):
                del os.environ[VARIABLE]
            self._timeline.unlink(missing_ok=True)

    def forget(self) -> None:
        """In a forked child: the timeline is the parent's."""
        self._children, self._ours = [], False


def add_horovod_window(hook: Hook, environment: MutableMapping[str, str] = os.environ) -> None:
    """Switch Horovod's timeline on if the configuration asks for it and Horovod is installed; before it is initialised."""
    if HOROVOD not in hook.profile.collectors or HOROVOD in hook.collectors:
        return
    if importlib.util.find_spec(HOROVOD) is None:
        hook.notes[HOROVOD] = "unavailable: Horovod is not installed"
        return
    named = environment.get(VARIABLE, "")
    if named.upper() == "DYNAMIC":
        hook.notes[HOROVOD] = "left out: the script switches Horovod's timeline itself"
        return
    if named:
        timeline = Path(named)
    else:
        folder = hook.root / FRAMEWORK / IGNORED_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        timeline = folder / f"horovod-{hook.node}-{os.getpid()}.json"
        environment[VARIABLE] = str(timeline)
    window = HorovodWindow(hook, timeline, ours=not named)
    hook.collectors[HOROVOD] = window
    hook.on_beat.append(window.look)
    hook.after_close.append(window.wait)
    hook.on_fork.append(window.forget)
