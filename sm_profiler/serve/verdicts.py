"""Verdicts of the reports that lie beside jobs: those of this machine at once, others in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import attrs

from sm_profiler.jobs.job import Job
from sm_profiler.report.saved import SavedVerdict, verdict_of
from sm_profiler.source.naming import is_account

CLOSING_S = 5.0
RETRY_S, LONGEST_RETRY_S = 60.0, 3600.0  # after a report that could not be read
MAX_KNOWN = 20_000


@attrs.frozen
class _Known:
    """The verdict of one report, or when to try again."""

    identity: str
    verdict: SavedVerdict | None
    failures: int = 0
    again_at: float = 0.0


@attrs.define(eq=False)
class Verdicts:
    """Reads each report once, and again when it changes; one that cannot be read is tried again after a while.

    Attributes:
        clock: for tests.
    """

    clock: Callable[[], float] = time.monotonic
    _known: dict[str, _Known] = attrs.field(factory=dict)
    _waiting: dict[str, Job] = attrs.field(factory=dict)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)
    _reader: threading.Thread | None = None
    _stop: threading.Event = attrs.field(factory=threading.Event)

    def of(self, job: Job) -> SavedVerdict | None:
        """Return the verdict of a job's report; None without one, or if it has not been read yet."""
        known = self._known.get(job.where)
        due = known is None or known.identity != job.identity or (known.failures and self.clock() >= known.again_at)
        is_remote = "://" in job.where or is_account(job.where)
        if due and not is_remote:
            self._read(job)
        elif due and (job.state == "ended" or not is_account(job.where)):  # asking the service costs several requests
            with self._lock:
                self._waiting[job.where] = job
                if self._reader is None and not self._stop.is_set():
                    self._reader = threading.Thread(target=self._read_waiting, name="sm-profiler-verdicts", daemon=True)
                    self._reader.start()
        known = self._known.get(job.where)
        return known.verdict if known else None

    def close(self) -> None:
        """Stop reading; a request that is under way ends first."""
        self._stop.set()
        if (reader := self._reader) is not None:
            reader.join(CLOSING_S)

    def _read_waiting(self) -> None:
        while True:
            with self._lock:
                if self._stop.is_set() or not self._waiting:
                    self._reader = None
                    return
                job = self._waiting.pop(next(iter(self._waiting)))
            self._read(job)

    def _read(self, job: Job) -> None:
        before = self._known.get(job.where)
        try:
            report = job.read_report()
            found = _Known(job.identity, verdict_of(report) if report is not None else None)
        except Exception:  # noqa: BLE001 - of this job, which is shown without a verdict; a client may raise anything
            failures = before.failures + 1 if before is not None else 1
            pause_s = min(RETRY_S * 2.0 ** (failures - 1), LONGEST_RETRY_S)
            found = _Known(job.identity, before.verdict if before else None, failures, self.clock() + pause_s)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[job.where] = found
