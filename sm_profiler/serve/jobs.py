"""The jobs of the sources that are served: found in folders and prefixes, followed while a viewer watches them."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from sm_profiler.errors import ProfilerError
from sm_profiler.jobs.finding import find_jobs
from sm_profiler.printable import printable
from sm_profiler.report.saved import SavedVerdict
from sm_profiler.serve.live import LiveJob
from sm_profiler.serve.verdicts import Verdicts
from sm_profiler.source.naming import is_account

if TYPE_CHECKING:
    from sm_profiler.jobs.account import Account

MAX_JOBS = 500  # listed
MAX_LIVE = 12  # jobs whose state is kept; beyond that, the longest unwatched is forgotten
LOCAL_LISTING_S, REMOTE_LISTING_S = 3.0, 60.0
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class TooManyJobsError(ProfilerError):
    """No further job can be followed."""


@attrs.frozen
class Found:
    """One job of a source.

    Attributes:
        id: its part of the page's address; the same after a restart.
        name: its name.
        where: its folder or URI, or the name of a training job.
        changed: when its files changed last, seconds since the epoch; 0 if that is not known.
        state: `running`, `ended`, or "" if that is not known.
        saved: the verdict of a report that lies beside the profile; None without one.
    """

    id: str
    name: str
    where: str
    changed: float = 0.0
    state: str = ""
    saved: SavedVerdict | None = None


def job_id(name: str, where: str) -> str:
    """Return an identifier for addresses: the name's harmless characters, and a checksum of the location."""
    readable = _UNSAFE.sub("-", name).strip("-.")[:60]
    return f"{readable or 'job'}-{hashlib.sha256(os.fsencode(where)).hexdigest()[:8]}"


def find_shown(
    source: str, verdicts: Verdicts | None = None, accounts: dict[str, Account] | None = None
) -> Iterator[Found]:
    """Yield the jobs of a source as they are shown.

    Args:
        source: as named on the command line.
        verdicts: reads the verdicts of saved reports.
        accounts: accounts that are open, by region.

    Raises:
        SourceError: it cannot be listed.
    """
    for one in find_jobs(source, expected=True, accounts=accounts):
        saved = verdicts.of(one) if verdicts is not None else None
        yield Found(job_id(one.name, one.where), one.name, one.where, one.changed, one.state, saved)


def follow_apart(where: str) -> LiveJob:
    """Return the follower of a job that keeps little of it in this process."""
    return LiveJob(where, apart=True)


@attrs.define(eq=False)
class Jobs:
    """All jobs of the sources.

    Attributes:
        sources: as named on the command line.
        clock: for tests.
        follow: makes the follower of a job.
    """

    sources: Sequence[str]
    clock: Callable[[], float] = time.monotonic
    follow: Callable[[str], LiveJob] = follow_apart
    problems: list[str] = attrs.field(factory=list, init=False)
    _found: dict[str, Found] = attrs.field(factory=dict, init=False)
    _live: dict[str, LiveJob] = attrs.field(factory=dict, init=False)
    _listed: float | None = attrs.field(default=None, init=False)
    _accounts: dict[str, Account] = attrs.field(factory=dict, init=False)
    _verdicts: Verdicts = attrs.field(factory=Verdicts, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _listing: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def listing(self) -> list[Found]:
        """Return the jobs, the latest first; the sources are listed again if that was some time ago."""
        is_remote = any("://" in one or is_account(one) for one in self.sources)
        pause_s = REMOTE_LISTING_S if is_remote else LOCAL_LISTING_S
        with self._listing:
            if self._listed is None or self.clock() - self._listed >= pause_s:
                self._list()
                self._listed = self.clock()
        return sorted(self._found.values(), key=lambda one: (-one.changed, one.name))

    @property
    def count(self) -> int:
        """Number of jobs, as of the last listing."""
        return len(self._found)

    def _list(self) -> None:
        found, problems = {}, []
        for source in self.sources:
            try:
                for one in find_shown(source, self._verdicts, self._accounts):
                    found[one.id] = one
                    if len(found) >= MAX_JOBS:
                        problems.append(f"only the first {MAX_JOBS} jobs are listed")
                        break
            except (ProfilerError, OSError) as error:
                problems.append(printable(f"{source}: {error}"))
                found.update({key: one for key, one in self._found.items() if one.where.startswith(source)})
        self._found, self.problems = found, problems

    def known(self, identifier: str) -> Found | None:
        """Return a job by its identifier; the sources are listed again if it is not known yet."""
        if identifier not in self._found:
            self.listing()
        return self._found.get(identifier)

    def live(self, found: Found) -> LiveJob:
        """Return the follower of a job; the longest unwatched job is forgotten if there are too many.

        Raises:
            TooManyJobsError: all of them are watched.
        """
        with self._lock:
            if found.id not in self._live:
                idle = sorted((one.watched_at, key) for key, one in self._live.items() if not one.is_followed)
                surplus = max(len(self._live) - MAX_LIVE + 1, 0)
                if surplus > len(idle):
                    raise TooManyJobsError(
                        f"{MAX_LIVE} jobs are watched already; two minutes after the last look at one, its place is free"
                    )
                for _, key in idle[:surplus]:
                    self._live.pop(key).close()
                self._live[found.id] = self.follow(found.where)
            return self._live[found.id]

    def live_or_none(self, found: Found) -> LiveJob | None:
        """Return the follower of a job; None if there are too many."""
        try:
            return self.live(found)
        except TooManyJobsError:
            return None

    def watched(self, found: Found) -> LiveJob | None:
        """Return the follower of a job if it has one."""
        return self._live.get(found.id)

    def close(self) -> None:
        """Stop following all jobs."""
        for one in self._live.values():
            one.close()
        self._verdicts.close()
