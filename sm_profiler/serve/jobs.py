"""The jobs of the sources that are served: found in folders and prefixes, followed while a viewer watches them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs

from sm_profiler.diagnosis.model import Finding
from sm_profiler.errors import ProfilerError
from sm_profiler.fleet.model import titled
from sm_profiler.formats.event_names import PROCESS
from sm_profiler.formats.layout import TRACE_FOLDER, TraceFile, hour_folder, parse_path
from sm_profiler.formats.process_end import END
from sm_profiler.jobs.finding import UPLOADED_S, Job, find_jobs, is_remote, local_folder
from sm_profiler.printable import printable
from sm_profiler.report.report_json import read_failure, read_report, read_verdict, stored_end
from sm_profiler.serve.live import LINGER_S, LiveJob
from sm_profiler.serve.owners import NOBODY, Owner, Owners
from sm_profiler.serve.reading import JobStatus
from sm_profiler.serve.snapshot import Snapshot
from sm_profiler.source import open_source
from sm_profiler.source.opening import OUTPUTS, NoProfilerDataError, is_account
from sm_profiler.storage import open_storage

if TYPE_CHECKING:
    from sm_profiler.jobs.account import Account

MAX_JOBS = 2000  # listed
MAX_LIVE = 12  # jobs whose state is kept; beyond that, the longest unwatched is forgotten
LOCAL_LISTING_S, REMOTE_LISTING_S = 3.0, 60.0
LISTING_SHARE = 0.1  # of the time, at most, is spent on listing
CLOSING_S = 5.0
RETRY_S, LONGEST_RETRY_S = 60.0, 3600.0  # after a report that could not be read
MAX_KNOWN = 20_000
QUIET_S = 120.0  # a running job uploads files each minute
MAX_PROCESSES = 64  # whose last records are read
TAIL = 65_536  # bytes of a trace file, with the last record of its process
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class TooManyJobsError(ProfilerError):
    """No further job can be followed."""


@attrs.frozen
class Found(Job):
    """A job as it is shown.

    Attributes:
        saved: verdict of the report next to its profile; None if it has no report.
        end: why the job failed, by that report; "" if it did not.
        problem: why a training job that has ended has no profile; "" for others, or if that is not known yet.
        owner: whose it is and where it runs, by its own files.
    """

    saved: Finding | None = None
    end: str = ""
    problem: str = ""
    owner: Owner = NOBODY

    @property
    def label(self) -> str:
        """Its name, and what its launcher calls it, as rows of a fleet have them."""
        return titled(self.name, self.owner.job)

    @property
    def id(self) -> str:
        """Its part of the page's address, the same after a restart: harmless characters, and a checksum of the location."""
        readable = _UNSAFE.sub("-", self.name).strip("-.")[:60]
        return f"{readable or 'job'}-{hashlib.sha256(os.fsencode(self.where)).hexdigest()[:8]}"


@attrs.frozen
class _Known:
    """The verdict of a report with the failure in it, or why there is no profile, or when to try again."""

    identity: str
    verdict: Finding | None
    end: str = ""
    problem: str = ""
    failures: int = 0
    again_at: float = 0.0


@attrs.define(eq=False)
class Verdicts:
    """Reads each report once, and again when it changes; if that fails, once more after a while.

    Attributes:
        clock: for tests.
    """

    clock: Callable[[], float] = time.monotonic
    _known: dict[str, _Known] = attrs.field(factory=dict)
    _waiting: dict[str, Job] = attrs.field(factory=dict)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)
    _reader: threading.Thread | None = None
    _stop: threading.Event = attrs.field(factory=threading.Event)

    def of(self, job: Job) -> Finding | None:
        """Return the verdict of a job's report; None if it has none, or if that has not been read yet."""
        known = self.known(job)
        return known.verdict if known else None

    def known(self, job: Job) -> _Known | None:
        """Return what is known of a job's report; None if it has not been read yet."""
        known = self._known.get(job.where)
        due = known is None or known.identity != job.identity or (known.failures and self.clock() >= known.again_at)
        if due and not is_remote(job.where):
            self._read(job)
        elif due and (job.state == "ended" or not is_account(job.where)):  # asking the service costs several requests
            with self._lock:
                self._waiting[job.where] = job
                if self._reader is None and not self._stop.is_set():
                    self._reader = threading.Thread(target=self._read_waiting, name="sm-profiler-verdicts", daemon=True)
                    self._reader.start()
        return self._known.get(job.where)

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
            if report is not None:
                found = _Known(job.identity, read_verdict(report), end=read_failure(report))
            else:
                found = _Known(job.identity, None, problem=_why_no_profile(job))
        except Exception:  # of this job, which is shown without a verdict; a client may raise anything
            failures = before.failures + 1 if before is not None else 1
            pause_s = min(RETRY_S * 2.0 ** (failures - 1), LONGEST_RETRY_S)
            found = attrs.evolve(
                before or _Known(job.identity, None),
                identity=job.identity,
                failures=failures,
                again_at=self.clock() + pause_s,
            )
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[job.where] = found


def _why_no_profile(job: Job) -> str:
    """Return why a training job of the account that has ended has no profile; "" if it has one, or if that is unknown."""
    if not job.status:
        return ""
    try:
        open_source(job.where)
    except NoProfilerDataError as error:
        return printable(error) if error.over else ""
    return ""


@attrs.define(eq=False)
class Endings:
    """Finds jobs on S3 that have ended although their files are recent: only a complete profile has an end marker.

    Attributes:
        now: seconds since the epoch, for tests.
    """

    now: Callable[[], float] = time.time
    _over: dict[str, float] = attrs.field(factory=dict)  # by location: the last change of the files
    _statuses: dict[str, JobStatus] = attrs.field(factory=dict)

    def is_over(self, job: Job) -> bool:
        """Return whether the account or the job's report has its end, or the last record of each of its processes."""
        if "://" not in job.where or job.state != "running" or self.now() - job.changed < QUIET_S:
            return False
        if self._over.get(job.where) == job.changed:
            return True
        status = self._statuses.setdefault(job.where, JobStatus(job.where))
        status.ask()
        try:
            over = status.is_over or (
                not status.description and (_report_has_end(job) or records_have_ends(job.where, self.now()))
            )
        except (ProfilerError, OSError):  # the page of the job reports it
            return False
        if over:
            self._over[job.where] = job.changed
        return over


def _report_has_end(job: Job) -> bool:
    data = job.read_report()
    end = stored_end(read_report(data)) if data is not None else None
    return end is not None and end.last > job.changed - QUIET_S


def records_have_ends(where: str, now: float) -> bool:
    """Return whether the latest record of each process on S3 has its end."""
    storage, latest = open_storage(where), dict[str, tuple[int, str, int]]()
    since = hour_folder((now - UPLOADED_S - QUIET_S) * 1e6)
    for base in ("", *(f"{name}/" for name in OUTPUTS)):
        folder = f"{base}{TRACE_FOLDER}/"
        for info in storage.list(folder, f"{folder}{since}"):
            parsed = parse_path(info.key.removeprefix(base))
            if isinstance(parsed, TraceFile):
                known = latest.get(parsed.source, (0, "", 0))
                latest[parsed.source] = max(known, (parsed.end_us, info.key, info.size))
    if not latest or len(latest) > MAX_PROCESSES:
        return False
    return all(_has_end(storage.read(key, max(size - TAIL, 0), size)) for _, key, size in latest.values())


def _has_end(tail: bytes) -> bool:
    """Return whether the last record of the process in the end of a trace file has its end."""
    for line in reversed(tail.splitlines()):
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            event = json.loads(line.strip().rstrip(b",]"))
            if event.get("name") == PROCESS:
                return bool(event.get("args", {}).get(END))
    return False


def find_shown(
    source: str,
    verdicts: Verdicts | None = None,
    accounts: dict[str, Account] | None = None,
    endings: Endings | None = None,
) -> Iterator[Found]:
    for job in find_jobs(source, expected=True, accounts=accounts):
        state = "ended" if endings is not None and endings.is_over(job) else job.state
        known = verdicts.known(job) if verdicts is not None else None
        found = Found(job.name, job.where, job.changed, state, status=job.status)
        if known is not None and not (job.state == "ended" and job.is_report_outdated()):
            found = attrs.evolve(found, saved=known.verdict, end=known.end, problem=known.problem)
        yield found


@attrs.define(eq=False)
class Jobs:
    """All jobs of the sources.

    Attributes:
        sources: as named on the command line.
        prices: instance type → dollars an hour; see `report.prices.Prices`.
        listed: path of the scheduler's list of jobs; "" without one.
        clock: for tests.
        follow: makes the follower of a job.
    """

    sources: Sequence[str]
    prices: Mapping[str, object] | None = None
    listed: str = attrs.field(default="", kw_only=True)
    clock: Callable[[], float] = time.monotonic
    follow: Callable[[str], LiveJob] = attrs.field(
        default=attrs.Factory(lambda self: partial(LiveJob, use_subprocess=True, prices=self.prices), takes_self=True)
    )
    problems: list[str] = attrs.field(factory=list, init=False)
    _found: dict[str, Found] = attrs.field(factory=dict, init=False)
    _live: dict[str, LiveJob] = attrs.field(factory=dict, init=False)
    _viewed: dict[str, float] = attrs.field(factory=dict, init=False)  # identifier → when its page was requested last
    _due: float | None = attrs.field(default=None, init=False)  # when the sources are listed again
    _accounts: dict[str, Account] = attrs.field(factory=dict, init=False)
    _verdicts: Verdicts = attrs.field(factory=Verdicts, init=False)
    _endings: Endings = attrs.field(factory=Endings, init=False)
    _owners: Owners = attrs.field(factory=Owners, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _listing: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def listing(self) -> list[Found]:
        """Return the jobs, the latest first; the sources are listed again if that was some time ago.

        While one viewer waits for that, the others see the jobs as they were listed before.
        """
        if self._listing.acquire(blocking=self._due is None):
            try:
                if self._due is None or self.clock() >= self._due:
                    begun = self.clock()
                    self._list()
                    pause_s = REMOTE_LISTING_S if any(map(is_remote, self.sources)) else LOCAL_LISTING_S
                    self._due = self.clock() + max(pause_s, (self.clock() - begun) / LISTING_SHARE)
            finally:
                self._listing.release()
        return sorted(self._found.values(), key=lambda job: (-job.changed, job.name))

    @property
    def count(self) -> int:
        """Number of jobs, as of the last listing."""
        return len(self._found)

    def _list(self) -> None:
        found, problems = dict[str, Found](), list[str]()
        for source in self.sources:
            try:
                for job in find_shown(source, self._verdicts, self._accounts, self._endings):
                    found[job.id] = job
                    if len(found) >= MAX_JOBS:
                        problems.append(f"only the first {MAX_JOBS:,} jobs are listed; `sm-profiler fleet` reads all")
                        break
            except (ProfilerError, OSError) as error:
                problems.append(printable(f"{source}: {error}"))
                found.update({key: job for key, job in self._found.items() if job.where.startswith(source)})
        self._owners.read(found.values())
        found = {key: attrs.evolve(job, owner=self._owners.of(job)) for key, job in found.items()}
        self._found, self.problems = found, problems

    def known(self, identifier: str) -> Found | None:
        """Return a job by its identifier; the sources are listed again if it is not known yet, or its folder is gone."""
        found = self._found.get(identifier)
        if found is None or not (is_remote(found.where) or local_folder(found.where)):
            self.listing()
        return self._found.get(identifier)

    def live(self, found: Found, *, has_page: bool = True) -> LiveJob:
        """Return the follower of a job; the longest unwatched job is forgotten if there are too many.

        Args:
            found: the job.
            has_page: a page of it is open. It takes the place of a job that only the list of jobs follows.

        Raises:
            TooManyJobsError: all of them are watched.
        """
        with self._lock:
            now = self.clock()
            if has_page:
                self._viewed[found.id] = now
            if found.id not in self._live:
                idle = sorted(
                    (live.is_followed, live.watched_at, key)
                    for key, live in self._live.items()
                    if not live.is_followed or (has_page and now - self._viewed.get(key, -math.inf) > LINGER_S)
                )
                surplus = max(len(self._live) - MAX_LIVE + 1, 0)
                if surplus > len(idle):
                    raise TooManyJobsError(
                        f"{MAX_LIVE} jobs are watched already; a job is dropped two minutes after its last viewer has left"
                    )
                for *_, key in idle[:surplus]:
                    self._live.pop(key).close()
                    self._viewed.pop(key, None)
                self._live[found.id] = self.follow(found.where)
            return self._live[found.id]

    def live_or_none(self, found: Found) -> LiveJob | None:
        """Return the follower of a job for the list of jobs; None if there are too many."""
        try:
            return self.live(found, has_page=False)
        except TooManyJobsError:
            return None

    def watched(self, found: Found) -> LiveJob | None:
        """Return the follower of a job; None if it has none."""
        return self._live.get(found.id)

    def current(self, found: Found) -> Snapshot | None:
        """Return what the follower of a job has of its files as they are; None if it has none, or read earlier ones."""
        live = self.watched(found)
        return None if live is None or live.is_outdated else live.snapshot

    def close(self) -> None:
        for live in self._live.values():
            live.close()
        self._verdicts.close()
