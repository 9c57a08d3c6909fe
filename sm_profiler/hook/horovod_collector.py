"""The Horovod window: enable Horovod's own timeline before Horovod starts, and convert the window's part of it.

Only the first rank has such a timeline.  Horovod writes it from its start to its end, into a file that is not uploaded.
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
from sm_profiler.hook.bounded import run_bounded
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.recorder import DISK_SECONDS
from sm_profiler.hook.settings import requested_collectors

if TYPE_CHECKING:
    from sm_profiler.hook.session import Session

HOROVOD = "horovod"
VARIABLE = "HOROVOD_TIMELINE"
PATIENCE_SECONDS = 20
MAX_BYTES = 1 << 30  # of Horovod's own file, until the window is over
MAX_BYTES_AFTER = 64 << 20


class HorovodCollector(Collector):
    """Remembers when the window opens and closes, and starts a process that converts that part of the timeline."""

    name = HOROVOD

    def __init__(self, session: Session, timeline: Path, *, ours: bool) -> None:
        self._session = session
        self._timeline = timeline
        self._ours = ours
        self._start_us = 0
        self._over = False
        self._cut = False  # Horovod's file lacks its beginning
        self._children: list[subprocess.Popen[bytes]] = []

    def enter(self, step: int) -> None:  # noqa: ARG002 - the life cycle's
        """Remember the time."""
        self._start_us = self._session.timebase.now_us()

    def leave(self, step: int) -> None:  # noqa: ARG002 - the life cycle's
        """Schedule the conversion."""
        session, at_us = self._session, self._session.timebase.now_us()
        self._over = True
        if not self._ours and session.rank not in {0, None}:  # all ranks name the file, the first one writes it
            return
        if self._cut:
            session.note(HOROVOD, "left out: the names in Horovod's timeline were cut off after its first window")
            return
        order = {
            "timeline": str(self._timeline),
            "root": str(session.root),
            "start_us": self._start_us,
            "end_us": at_us,
            "patience_s": PATIENCE_SECONDS,
            "monotonic_us": session.timebase.now_us() - time.monotonic_ns() // 1000,
            "pid": os.getpid(),
        }
        session.later(lambda: self._convert(order))

    def _convert(self, order: dict[str, object]) -> None:
        """Start the conversion, on the recorder's thread."""
        if not self._timeline.exists():  # only the first rank has one
            return
        order |= {"source": self._session.source, "collector": HOROVOD, "process": self._session.describe()}
        self._children.append(conversion.start("sm_profiler.hook.convert_horovod", order, without=(VARIABLE,)))

    def beat(self) -> None:
        """Keep Horovod's file from filling the disk.

        Horovod continues to write at its offset, so truncating leaves a hole that takes no space.
        """
        if not self._ours:
            return
        try:
            size = self._timeline.stat().st_blocks * 512
            converted = self._over and all(child.poll() is not None for child in self._children)
            if size > MAX_BYTES and not self._over:
                self._session.note(HOROVOD, "left out: Horovod wrote a gigabyte before the window was over")
                self._session.guard.failed(HOROVOD, RuntimeError("its timeline is larger than a gigabyte"))
                self._over = True
            elif size <= MAX_BYTES_AFTER or not converted:
                return
            self._cut = True
            os.truncate(self._timeline, 0)
        except OSError:
            return  # does not exist (yet)

    def finish(self) -> None:
        """Wait for conversions, and remove Horovod's file."""
        for child in self._children:
            if not conversion.finish(child):
                self._session.note(HOROVOD, "the conversion of the timeline took too long")
        if self._ours:
            if os.environ.get(VARIABLE) == str(self._timeline):
                del os.environ[VARIABLE]
            run_bounded(lambda: self._timeline.unlink(missing_ok=True), DISK_SECONDS, "the disk does not answer")

    def forked(self) -> None:
        """Leave the timeline to the parent."""
        self._children, self._ours = [], False


def add_horovod(session: Session, environment: MutableMapping[str, str] = os.environ) -> None:
    """Enable Horovod's timeline if it is configured and Horovod is installed; call this before Horovod is initialised."""
    if HOROVOD not in session.profile.collectors:
        return
    if importlib.util.find_spec(HOROVOD) is None:
        if HOROVOD in requested_collectors(session.profile):
            session.note(HOROVOD, "unavailable: Horovod is not installed")
        return
    named = environment.get(VARIABLE, "")
    if named.upper() == "DYNAMIC":
        session.note(HOROVOD, "left out: the script controls Horovod's timeline itself")
        return
    if named:
        timeline = Path(named)
    else:
        folder = session.root / FRAMEWORK / IGNORED_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        timeline = folder / f"horovod-{session.node}-{os.getpid()}.json"
        environment[VARIABLE] = str(timeline)
    session.add(HorovodCollector(session, timeline, ours=not named))
