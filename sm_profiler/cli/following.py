"""Follow a job for `sm-profiler report --follow`: wait for its data, report early, and notice that its writer is gone."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.monitor.run_state import read_state
from sm_profiler.printable import printable
from sm_profiler.source import ProfileSource, open_source
from sm_profiler.source.open_files import copy_with_open_files
from sm_profiler.source.opening import NoProfilerDataError

LOCAL_POLL_S = 2.0  # listing a folder costs little
REMOTE_POLL_S = 10.0
PREVIEW_S = 10.0  # between two preliminary reports


@attrs.define
class Follower:
    """Follows one folder, prefix or job.

    Attributes:
        where: the source as named on the command line.
        strict: make every lost record an error.
        preview: called with a source of the data so far, open files included, until there is a first report.
        sleep, clock: for tests.
    """

    where: str
    strict: bool = False
    preview: Callable[[ProfileSource], object] | None = None
    sleep: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic
    reported: bool = False
    _last_line: str = ""
    _previewed: float | None = None
    _over: bool = False

    @property
    def folder(self) -> Path | None:
        """The folder of a local profile; None for anything else."""
        folder = Path(self.where)
        return folder if "://" not in self.where and folder.is_dir() else None

    @property
    def poll_s(self) -> float:
        """Seconds between two checks."""
        return LOCAL_POLL_S if self.folder else REMOTE_POLL_S

    def open(self) -> ProfileSource:
        """Open the source as soon as it contains data.

        Raises:
            SourceError: it cannot be read, or the run ended without data.
        """
        while True:
            try:
                return open_source(self.where, strict=self.strict, left_open=False)
            except NoProfilerDataError as error:
                state = read_state(self.folder) if self.folder else None
                if state is not None and state.is_over:
                    raise SourceError(f"{error}; its run {state.outcome}") from None
            self.waiting()
            self.sleep(self.poll_s)

    def waiting(self) -> None:
        """Report what is waited for, and make a preliminary report if there is data in open files."""
        self.report_state("waiting for the first complete data" if not self.reported else "waiting for the job to end")
        if self.reported or self.preview is None or self.folder is None:
            return
        if self._previewed is None or self.clock() - self._previewed >= PREVIEW_S:
            with tempfile.TemporaryDirectory(prefix="sm-profiler-") as scratch:
                copy = Path(scratch, "profiler-output")
                if copy_with_open_files(self.folder, copy):
                    try:
                        self.preview(open_source(copy, cache=False, progress=False))
                        self._previewed = self.clock()
                    except SourceError:  # nothing readable yet
                        return

    def should_stop(self) -> bool:
        """Return whether the writer is gone; data is read once more after that has been noticed."""
        if self._over:
            return True
        state = read_state(self.folder) if self.folder else None
        if state is not None and state.is_over:
            self._over = True
            self.report_state(f"the run {state.outcome}; reading its last files")
        return False

    def report_state(self, text: str) -> None:
        """Print a line about the state of following, unless it was the last one."""
        if text != self._last_line:
            self._last_line = text
            print(f"sm-profiler: {printable(self.where)}: {text} (Ctrl-C stops)", file=sys.stderr, flush=True)
