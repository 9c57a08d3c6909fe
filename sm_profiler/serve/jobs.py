"""The jobs of the sources that are served: found in folders and prefixes, followed while a viewer watches them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from sm_profiler.errors import ProfilerError
from sm_profiler.monitor.run_state import read_state
from sm_profiler.printable import printable
from sm_profiler.report.metric_folds import job_name
from sm_profiler.report.saved import SavedVerdict, saved_verdict
from sm_profiler.serve.account_jobs import AccountJobs, is_account
from sm_profiler.serve.ending import has_end_marker
from sm_profiler.serve.live import LiveJob
from sm_profiler.source.open_files import profile_folder
from sm_profiler.storage import open_storage

MAX_DEPTH = 3  # of folders in which profiles are searched
MAX_FOLDERS = 5000  # inspected; a whole disk is not searched
MAX_JOBS = 500  # listed
MAX_LIVE = 12  # jobs whose state is kept; beyond that, the longest unwatched is forgotten
LOCAL_LISTING_S, REMOTE_LISTING_S = 3.0, 60.0
SILENT_S = 180.0  # a job whose files are older is taken for one that no longer runs
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


def find_jobs(source: str) -> Iterator[Found]:
    """Yield the jobs of a source: itself, if it is one, else those below the folder or prefix.

    Raises:
        SourceError: it cannot be listed.
    """
    folder = Path(source)
    if "://" not in source and folder.is_dir():
        yield from _in_folder(folder)
    elif "://" in source:
        yield from _in_prefix(source)
    else:
        yield Found(job_id(source, source), source, source)


def is_profile(folder: Path) -> bool:
    """Return whether a folder is a job: its profile, the folder around it, or a run that has not written anything yet."""
    base = profile_folder(folder)
    return any((base / kind).is_dir() for kind in ("system", "framework")) or read_state(folder) is not None


def _in_folder(folder: Path) -> Iterator[Found]:
    if is_profile(folder):
        yield _local_job(folder)
        return
    level, looked_at = [folder], 0
    for _ in range(MAX_DEPTH):
        below = []
        for one in level:
            with contextlib.suppress(OSError), os.scandir(one) as entries:
                below += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        level = []
        for one in sorted(below):
            looked_at += 1
            if looked_at > MAX_FOLDERS:
                return
            if is_profile(one):
                yield _local_job(one)
            elif not one.name.startswith("."):
                level.append(one)


def _local_job(folder: Path) -> Found:
    base, where = profile_folder(folder), str(folder)
    times = [path.stat().st_mtime for path in _latest(base) if path.exists()]
    changed = max(times, default=0.0)
    run = read_state(folder)
    over = run.is_over if run is not None else has_end_marker(folder) or time.time() - changed > SILENT_S
    state = "ended" if over else "running"
    name = job_name(str(folder.resolve()))
    return Found(job_id(name, where), name, where, changed, state, saved_verdict(folder))


def _latest(base: Path) -> Iterator[Path]:
    """Yield folders whose times change with a new file: the last hours of both kinds."""
    yield from (base, base / "system", base / "framework")
    for folder in (base / "system" / "incremental", base / "framework" / "pevents"):
        yield folder
        hours = sorted(folder.glob("[0-9]*")) if folder.is_dir() else []
        yield from hours[-1:]


def _in_prefix(uri: str) -> Iterator[Found]:
    storage: Any = open_storage(uri)
    folders = list(storage.folders())
    inside = {"system/", "framework/", "profiler-output/"}
    if inside & set(folders) or not folders:
        name = job_name(storage.uri)
        yield Found(job_id(name, storage.uri), name, storage.uri)
        return
    for one in folders:
        where = f"{storage.uri}/{one.rstrip('/')}"
        deeper: Any = open_storage(where)
        if inside & set(deeper.folders()):
            name = job_name(where)
            yield Found(job_id(name, where), name, where)


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
    follow: Callable[[str], LiveJob] = LiveJob
    problems: list[str] = attrs.field(factory=list, init=False)
    _found: dict[str, Found] = attrs.field(factory=dict, init=False)
    _live: dict[str, LiveJob] = attrs.field(factory=dict, init=False)
    _listed: float | None = attrs.field(default=None, init=False)
    _accounts: dict[str, AccountJobs] = attrs.field(factory=dict, init=False)
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

    def _list(self) -> None:
        found, problems = {}, []
        for source in self.sources:
            try:
                for one in self._find(source):
                    found[one.id] = one
                    if len(found) >= MAX_JOBS:
                        problems.append(f"only the first {MAX_JOBS} jobs are listed")
                        break
            except (ProfilerError, OSError) as error:
                problems.append(printable(f"{source}: {error}"))
                found.update({key: one for key, one in self._found.items() if one.where.startswith(source)})
        self._found, self.problems = found, problems

    def _find(self, source: str) -> Iterator[Found]:
        if not is_account(source):
            yield from find_jobs(source)
            return
        account = self._accounts.setdefault(source, AccountJobs(source))
        for one in account.jobs():
            yield Found(job_id(one.name, one.where), one.name, one.where, one.created, one.state, one.saved)

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
        for account in self._accounts.values():
            account.close()
