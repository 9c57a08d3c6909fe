"""A job, followed by a thread while it has viewers, who get snapshots that never change.

    python -m sm_profiler.serve.live WHERE FILE PRICES

reads a job that is over and writes its page to a file, for a server that shows it: what reading takes goes back to the
system with the process. A job that runs is read by the server itself. A process for each would take 47 MB before it has
read anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.jobs.finding import local_folder
from sm_profiler.metrics.metric_folds import JobInfo
from sm_profiler.printable import printable
from sm_profiler.processes import start_module, trim_heap, wait_for, wait_for_starter
from sm_profiler.render.page import page_parts
from sm_profiler.serve.logs import LogTail
from sm_profiler.serve.pages import log_part
from sm_profiler.serve.reading import (
    FIRST_S,
    JobReader,
    ResumeCheck,
    absolute,
    identity,
    in_parquet,
    is_over,
    resume_check_of,
)
from sm_profiler.serve.snapshot import Page, Part, Snapshot, as_page, in_brief, load, packed_or_none, save
from sm_profiler.source.opening import NoProfilerDataError
from sm_profiler.storage import LocalStorage

LOCAL_POLL_S = 0.5  # listing the latest files of a folder costs little
REMOTE_POLL_S = 10.0
LINGER_S = 120.0  # a job is followed this long after its last viewer
REPORT_SHARE = 0.33  # of the time may be spent on reports, more if that shows new data within FRESH_S
FRESH_S = 1.8  # from a file to the page; what is missing of two seconds is the way to the viewer
BREATH_S = 0.15  # between two reports at least: what takes longer cannot be shown within FRESH_S
LARGE_BYTES, LARGE_S = 30_000, 1.0  # larger parts of the page are renewed at most this often
LONGEST_RETRY_S = 60.0
RESUMED_S = 3.0  # between two checks of a job that has ended and may be resumed
REMOTE_RESUMED_S = 60.0
SAVE_S = 60.0  # between two copies of the page for the next start
WRITTEN_S = 0.1  # between two looks at what a process has written
OWN_PAGE = 4 << 30  # bytes of a page that our own process wrote, once unpacked


_report_lock = threading.Lock()  # one job at a time computes its report
_free = threading.Semaphore(2)  # processes that read: a very long job must not keep all others waiting


class LiveJob:
    """Follows a job while it is watched.

    Attributes:
        problem: why a training job that has ended has no profile; "" for others.

    Args:
        where: folder, s3:// URI, or name of a training job.
        use_subprocess: read a job that is over in a process that ends then, and keep its report packed.
        linger_s: how long it is followed after the last call of `watch`.
        prices: instance type → dollars an hour; see `report.prices.Prices`.
        clock: for tests.
        on_change: called with each new state.
    """

    def __init__(
        self,
        where: str,
        *,
        use_subprocess: bool = False,
        linger_s: float = LINGER_S,
        prices: Mapping[str, object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[Snapshot], object] = bool,
    ) -> None:
        self.where, self._use_subprocess, self._on_change = where, use_subprocess, on_change
        self.problem = ""
        self._linger_s, self._clock, self._prices = linger_s, clock, prices
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._watched = clock()
        saved = load(where)
        self._snapshot = saved or Snapshot()
        self._is_saved_copy = saved is not None  # what is shown was saved earlier
        self._next_save = 0.0
        self._reader = self._new_reader()
        self._by_process = use_subprocess and is_over(where)
        self._process: subprocess.Popen[bytes] | None = None
        self._read_identity: Any = None  # of what a process has read
        self._dirty = False
        self._next_report = self._show_early = 0.0
        self._failures = 0
        self._log = LogTail.of(where, clock)
        self._resume_check: ResumeCheck | None = None  # of a job that is over
        self._checked = 0.0

    def _new_reader(self) -> JobReader:
        return JobReader(self.where, job=JobInfo(prices=self._prices))

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    @property
    def is_followed(self) -> bool:
        """True while its thread runs."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    @property
    def is_outdated(self) -> bool:
        """True if a job in a folder had ended, and its files have changed since: it was requeued, or goes on."""
        check = self._resume_check
        return check is not None and local_folder(self.where) is not None and self._is_resumed(check)

    @property
    def watched_at(self) -> float:
        """When it was last watched, by the clock."""
        return self._watched

    def watch(self) -> Snapshot:
        """Count on a viewer for a while, follow the job unless it is followed already, and return the latest state."""
        with self._lock:
            self._watched = self._clock()
            if self._thread is None and not self._stop.is_set() and self._is_worth_polling():
                self._thread = threading.Thread(target=self._run, name="sm-profiler-live", daemon=True)
                self._thread.start()
        return self._snapshot

    def close(self) -> None:
        self._stop.set()
        if (process := self._process) is not None:
            process.kill()

    def _is_worth_polling(self) -> bool:
        """Return whether the job runs, or it is time to check whether it has been resumed."""
        if self._snapshot.state != "ended":
            return True
        pause_s = RESUMED_S if local_folder(self.where) else REMOTE_RESUMED_S
        return self._watched - self._checked >= pause_s

    def _run(self) -> None:
        self.poll()
        while not self._is_done():
            self._stop.wait(self._pause_s())
            self.poll()

    def _is_done(self) -> bool:
        """Return whether the thread ends, in one step with forgetting it: a later viewer starts another."""
        with self._lock:
            idle = self._clock() - self._watched > self._linger_s
            if idle or self._stop.is_set() or self._snapshot.state == "ended":
                self._thread = None
                return True
        return False

    def _pause_s(self) -> float:
        poll_s = LOCAL_POLL_S if local_folder(self.where) else REMOTE_POLL_S
        if self._failures:
            return min(poll_s * 2.0**self._failures, LONGEST_RETRY_S)
        turn_s = self._next_report - self._clock()
        return min(poll_s, turn_s) if turn_s > 0 and (self._dirty or poll_s == LOCAL_POLL_S) else poll_s

    def poll(self) -> None:
        """Read what is new; publish a report if there is anything, and if the last report did not cost too much."""
        if self._resume_check is not None:
            self._checked = self._clock()
            if not self._is_resumed(self._resume_check):
                return
            self._by_process = self._use_subprocess and is_over(self.where)
            self._resume_check = self._read_identity = None
            state = "reading" if self._by_process else "running"
            self._publish(state=state, note="", main=None, end="", status="")
        try:
            if self._by_process:
                self._read_by_process()
            if self._by_process:
                self._failures = 0
                return
            self._show_early = self._clock() + FIRST_S
            self._dirty = self._reader.read(self._progress) or self._dirty
            caught_up = self._reader.over or self._snapshot.state != "running"  # that must not wait for its turn
            if self._dirty and (caught_up or self._clock() >= self._next_report):
                self._publish_report()
            elif not self._dirty and self._snapshot.main is None:
                self._publish(state="waiting", note="waiting for the first data")
            self._failures = 0
            self._read_log(last=self._snapshot.state == "ended")
        except NoProfilerDataError as error:
            if error.over:
                self.problem, self._checked = printable(error), self._clock()
                self._publish(state="ended", note=self.problem)
                self._read_log(last=True)
                return
            if error.final:
                self._failed(printable(error))
                return
            outcome = self._reader.outcome
            note = f"the run {outcome} and recorded nothing" if outcome else "waiting for the first data"
            if outcome:
                self._ended()
            self._publish(state="ended" if outcome else "waiting", note=note)
            self._read_log()
        except ProfilerError as error:
            self._failed(printable(error))
        except Exception as error:  # of this job; the others and the page go on
            self._failed(printable(f"{type(error).__name__}: {error}"))

    @staticmethod
    def _is_resumed(check: ResumeCheck) -> bool:
        """Return whether a job that has ended goes on; False if its files cannot be read."""
        try:
            return check()
        except (ProfilerError, OSError):
            return False

    def _read_by_process(self) -> None:
        """Have a process read the job unless that was done, and show what it writes; a job that is not over is then read here."""
        seen = identity(self.where)
        if seen == self._read_identity:
            return
        with _free, tempfile.TemporaryDirectory(prefix="sm-profiler-") as folder:
            if self._stop.is_set():
                return
            path = Path(folder, "page")
            prices = path.with_name("prices")  # no arguments, which every user of the machine can read
            prices.write_text(json.dumps(self._prices), "utf-8")
            arguments, pipe = [absolute(self.where), str(path), str(prices)], subprocess.PIPE
            process = start_module(__name__, arguments, stdin=pipe, stderr=subprocess.DEVNULL, new_session=True)
            self._process, shown = process, None
            try:
                while not wait_for(process, WRITTEN_S):
                    shown = self._show_written(path, shown)
            finally:
                self._process = None
                process.kill()
                process.communicate()
            if process.returncode:
                raise SourceError("the process that read it has ended before its time")
            self._show_written(path, None)
        self._read_identity, shows = seen, self._snapshot
        is_whole = bool(shows.packed) or shows.main is None  # there is a report for `compare`, or nothing was recorded
        self._by_process = is_whole and (shows.state == "ended" or (in_parquet(self.where) and bool(shows.packed)))
        if self._by_process and shows.state == "ended":
            self._resume_check, self._checked = resume_check_of(self.where, seen), self._clock()

    def _show_written(self, path: Path, before: float | None) -> float | None:
        """Show the page that a process has written, unless that is shown already; return when it was written."""
        with contextlib.suppress(FileNotFoundError):
            written = path.stat().st_mtime
            if written != before:
                found = Page.read(path.read_bytes(), OWN_PAGE).snapshot
                if found.state == "unreadable":
                    raise SourceError(found.note)
                parts, _ = self._renewed({key: part.html for key, part in found.parts.items()}, at_once=True)
                self._is_saved_copy = False
                shown = (
                    "state",
                    "note",
                    "main",
                    "end",
                    "status",
                    "report",
                    "packed",
                    "spark",
                    "gpu",
                    "files",
                    "begun",
                    "data_at",
                )
                self._publish(parts=parts, **{name: getattr(found, name) for name in shown})
            return written
        return None

    def _read_log(self, *, last: bool = False) -> None:
        """Show the end of the log, also while there is no other data."""
        if self._log.read(last=last):
            parts = dict(self._snapshot.parts)
            parts["log"] = Part(log_part(self._log.streams), self._snapshot.version + 1, self._clock())
            self._publish(parts=parts)

    def _failed(self, line: str) -> None:
        """Show the error; if data was half counted, begin anew at the next attempt."""
        self._failures += 1
        self._dirty = True  # what is shown is no longer the error once it can be read again
        if not self._reader.is_intact:
            self._reader = self._new_reader()
        self._publish(state="unreadable", note=line)

    def _progress(self) -> None:
        """Show the first results while a long job is still read."""
        if not self._is_saved_copy and self._clock() >= max(self._next_report, self._show_early):
            self._publish_report(state="reading")

    def _publish_report(self, state: str = "") -> None:
        with _report_lock:
            begun = self._clock()  # the wait for other jobs is no work
            report = self._reader.report()
            rendered = {key: str(html) for key, html in page_parts(report).items()}
        if self._log.streams:
            rendered["log"] = log_part(self._log.streams)
        now = self._clock()
        self._next_report = now + pause_after(now - begun)
        parts, self._dirty = self._renewed(rendered, at_once=self._reader.over)
        over = self._reader.over and not state
        files, outcome = self._reader.files, self._reader.outcome
        packed = packed_or_none(report) if over and self._use_subprocess else b""
        if over:
            self._ended()
        self._is_saved_copy = False
        self._publish(
            state=state or ("ended" if over else "running"),
            note=outcome if over else "",
            parts=parts,
            report=None if packed else report,
            packed=packed,
            files=files,
            **in_brief(report),
        )
        if over or (not state and now >= self._next_save):
            self._next_save = now + SAVE_S
            save(self.where, self._snapshot)
            trim_heap()

    def _renewed(self, rendered: Mapping[str, str], *, at_once: bool) -> tuple[dict[str, Part], bool]:
        """Return the parts of the page, and whether large ones have to wait because they were renewed just now."""
        now, version, before = self._clock(), self._snapshot.version + 1, self._snapshot.parts
        parts, kept = dict[str, Part](), False
        for key, html in rendered.items():
            old = before.get(key)
            if old is not None and old.html == html:
                parts[key] = old
            elif old is not None and len(html) > LARGE_BYTES and now - old.at < LARGE_S and not at_once:
                parts[key], kept = old, True
            else:
                parts[key] = Part(html, version, now)
        for key in before.keys() - parts.keys():
            parts[key] = Part("", version, now)
        return parts, kept

    def _ended(self) -> None:
        """Forget the folds, which are not needed any more, but not how to notice that the job is resumed."""
        self._resume_check, self._checked = self._reader.resume_check, self._clock()
        self._reader = self._new_reader()

    def _publish(self, **changes: Any) -> None:
        if any(value != getattr(self._snapshot, name) for name, value in changes.items()):
            self._snapshot = replace(self._snapshot, version=self._snapshot.version + 1, **changes)
            self._on_change(self._snapshot)


def pause_after(report_s: float) -> float:
    """Return how long to wait after a report that took some seconds.

    A file that comes just as a report begins is shown by the next: after the rest of this report, the pause, and the next report.
    """
    share_s, fresh_s = max(report_s / REPORT_SHARE - report_s, LOCAL_POLL_S), FRESH_S - 2 * report_s
    return min(share_s, fresh_s) if fresh_s >= BREATH_S else share_s


def write_page(where: str, snapshot: Snapshot, path: Path) -> None:
    """Write the page of a job for the server, with its report once all is read."""
    packed = b"" if snapshot.state == "reading" else packed_or_none(snapshot.report)
    LocalStorage(path.parent).write(path.name, as_page(where, snapshot, packed))


def end_with_server(end: Callable[[], object]) -> None:
    """Have a thread call `end` when the server, which holds the other end of standard input, is gone."""

    def watch() -> None:
        wait_for_starter()
        end()

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Read the job that the command line names, at the prices in a file, and write its page to the file that it names."""
    where, path, prices = sys.argv[1], Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text("utf-8"))
    end_with_server(partial(os._exit, 1))
    LiveJob(where, prices=prices, on_change=lambda snapshot: write_page(where, snapshot, path)).poll()


if __name__ == "__main__":
    main()
