"""Uploads closed files while the job runs.  The disk is the queue: nothing is lost while S3 does not answer, it only waits."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.formats.layout import END_MARKERS, SystemFile, is_ignored, parse_path
from sm_profiler.monitor.destination import Destination
from sm_profiler.printable import logger_for
from sm_profiler.storage import FileInfo, LocalStorage

logger = logger_for("sm_profiler")

LOOK_SECONDS = 2.0
LOOK_SHARE = 200  # looking for files takes no more than this part of the time
QUEUE_FILES = 256  # taken up at a time; what is more waits on disk
PARALLEL = 4
FIRST_PAUSE_S, LONGEST_PAUSE_S, LAST_PAUSE_S = 0.5, 60.0, 2.0


@attrs.define(eq=False)
class Uploader:
    """Uploads what is closed below a folder, and again what changed.

    Attributes:
        root: the `profiler-output` folder on this machine.
        destination: where it goes.
        clock: seconds, never running backwards.
        wait: waits some seconds; a true answer means that it should come to an end.
        uploaded: files uploaded so far.
        failures: attempts that failed so far.
        error: the last failure in words, or "".
    """

    root: Path
    destination: Destination
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], object] = time.sleep
    uploaded: int = 0
    failures: int = 0
    error: str = ""
    _done: dict[str, tuple[str, int]] = attrs.field(factory=dict, init=False)
    _failed: dict[str, int] = attrs.field(factory=dict, init=False)
    _in_a_row: int = attrs.field(default=0, init=False)
    _said: set[str] = attrs.field(factory=set, init=False)

    def run(self, stop: threading.Event) -> None:
        """Upload until `stop` is set; what is left then is for `drain`."""
        self.wait = stop.wait
        while not stop.is_set():
            began = self.clock()
            pending = self.pending()
            looked = self.clock() - began
            if pending and not self.round(pending):
                self._sit_out(self.pause(LONGEST_PAUSE_S), stop)
            elif len(pending) <= QUEUE_FILES:
                stop.wait(max(LOOK_SECONDS, LOOK_SHARE * looked))

    def drain(self, deadline: float) -> bool:
        """Upload everything that is closed now, and try again until `deadline` (on `clock`); whether all is up."""
        while pending := self.pending():
            if self.clock() >= deadline:
                return False
            if not self.round(pending, deadline):
                self.wait(min(self.pause(LAST_PAUSE_S), max(deadline - self.clock(), 0.0)))
        return True

    def pending(self) -> list[FileInfo]:
        """Closed files that are not up, or have changed since: those that failed least first, then the oldest."""
        try:
            files = [
                info
                for info in LocalStorage(self.root).list()
                if not is_ignored(info.key)
                and info.key not in END_MARKERS
                and self._done.get(info.key) != (info.etag, info.size)
            ]
        except SourceError as error:
            self._warn(str(error))
            return []
        return sorted(files, key=lambda info: (self._failed.get(info.key, 0), info.mtime, info.key))

    def round(self, pending: list[FileInfo], deadline: float | None = None) -> bool:
        """Try the first files of the queue; False where the destination takes nothing, so that a pause is due."""
        with ThreadPoolExecutor(PARALLEL, "sm-profiler-upload") as pool:
            for at in range(0, min(len(pending), QUEUE_FILES), PARALLEL):
                if deadline is not None and self.clock() >= deadline:
                    return True
                files = pending[at : at + PARALLEL]
                results = list(pool.map(self._attempt, files))
                for info, result in zip(files, results, strict=True):
                    self._account(info, result)
                if "" in results:
                    self._in_a_row = 0
                elif any(results):
                    self._in_a_row += 1
                    return False
        return True

    def _account(self, info: FileInfo, result: str | None) -> None:
        if result == "":
            self._failed.pop(info.key, None)
            self._done[info.key] = (info.etag, info.size)
            self.uploaded += 1
        elif result:
            self.failures += 1
            self._failed[info.key] = self._failed.get(info.key, 0) + 1
            self._warn(result)

    def _sit_out(self, seconds: float, stop: threading.Event) -> None:
        """Wait, but not if a file comes that never failed: perhaps it is the others, not the destination."""
        until = self.clock() + seconds
        while (left := until - self.clock()) > 0 and not stop.wait(min(left, LOOK_SECONDS)):
            if any(info.key not in self._failed for info in self.pending()):
                return

    def pause(self, longest: float) -> float:
        """How long to wait before the next attempt, in seconds: twice as long each time, and never quite the same."""
        seconds: float = min(FIRST_PAUSE_S * 2.0 ** min(self._in_a_row - 1, 20), longest)
        return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - spreads the nodes' retries, guards nothing

    def put_markers(self) -> bool:
        """Say that nothing more will come; whether that worked."""
        try:
            for key in END_MARKERS:
                self.destination.put(key, b"")
        except Exception as error:  # noqa: BLE001 - boto3 raises many kinds
            self._warn(_one_line(error))
            return False
        return True

    def _attempt(self, info: FileInfo) -> str | None:
        """Upload a file: "" if it is up, None if it is gone, else what went wrong."""
        path = self.root / info.key
        try:
            earlier = self._earlier(info.key)
            if earlier:
                data = path.read_bytes()
                if data != earlier:
                    self.destination.put(info.key, data if data.startswith(earlier) else earlier + data)
            else:
                self.destination.put(info.key, path)
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            return _one_line(error)
        return ""

    def _earlier(self, key: str) -> bytes | None:
        """What an attempt that was interrupted in this very minute has uploaded under this name."""
        if key in self._done or not isinstance(parse_path(key), SystemFile):
            return None
        return self.destination.get(key)

    def _warn(self, text: str) -> None:
        self.error = text
        kind = text[:40]
        if kind not in self._said and len(self._said) < 5:  # noqa: PLR2004 - a log is no place for an outage's every second
            self._said.add(kind)
            logger.warning("sm-profiler: upload to %s: %s (tried again)", self.destination.uri, text)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
