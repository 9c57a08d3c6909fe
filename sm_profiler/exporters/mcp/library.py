"""The jobs that an agent may ask about: those of the sources that the server was started with, and their reports."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.fleet.analysis import GROUP_BY
from sm_profiler.fleet.building import build_fleet
from sm_profiler.fleet.model import Fleet
from sm_profiler.jobs.finding import Job, find_jobs
from sm_profiler.printable import printable
from sm_profiler.report import Report, build_report
from sm_profiler.source import open_source
from sm_profiler.source.opening import is_account
from sm_profiler.storage import open_storage

KEPT = 8  # reports in memory
MAX_JOBS = 1000


@attrs.define(eq=False)
class Library:
    """Reports by the name of their job. Safe to use from several threads.

    A report is made when it is first needed, and again if files have come since.

    Attributes:
        find: lists the jobs; called for each question, so that new ones are found.
        survey: returns the fleet of all jobs, grouped by some keys.
    """

    find: Callable[[], Sequence[Job]]
    survey: Callable[[Sequence[str]], Fleet]
    _reports: OrderedDict[str, tuple[Any, Report]] = attrs.field(factory=OrderedDict)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def jobs(self) -> list[Job]:
        """Return the jobs, the newest first, at most MAX_JOBS."""
        return sorted(self.find(), key=lambda job: (-job.changed, job.name))[:MAX_JOBS]

    def job(self, name: str) -> Job:
        """Return a job by its name."""
        jobs = self.jobs()
        for job in jobs:
            if job.name == name:
                return job
        raise SourceError(f"no job {printable(name)[:100]!r} here; list_jobs names the {len(jobs)} that there are")

    def known(self, job: Job) -> Report | None:
        """Return the report of a job if it was made before; files may have come since."""
        kept = self._reports.get(job.where)
        return kept[1] if kept else None

    def fleet(self, group_by: Sequence[str]) -> Fleet:
        """Return what all jobs cost and lose."""
        with self._lock:
            return self.survey(group_by)

    def report(self, name: str) -> Report:
        """Return the report of a job."""
        job = self.job(name)
        with self._lock:  # one at a time: each takes all processors
            source = open_source(job.where, progress=False)
            state = source.finished, sorted((item.info.key, item.info.size) for item in source.files)
            kept = self._reports.get(job.where)
            if kept is None or kept[0] != state:
                kept = state, build_report(source)
                self._reports[job.where] = kept
            self._reports.move_to_end(job.where)
            while len(self._reports) > KEPT:
                self._reports.popitem(last=False)
        return kept[1]


MAX_NAME = 200  # characters


def jobs_of(sources: Sequence[str]) -> list[Job]:
    """Return the jobs in folders, prefixes and accounts, and the training jobs named; of equal names, later ones get a number."""
    found: dict[str, Job] = {}
    errors = []
    for source in sources:
        try:
            jobs = list(find_jobs(source))
        except SourceError as error:
            errors.append(error)
            continue
        for job in jobs:
            name = wanted = printable(job.name)[:MAX_NAME]
            number = 2
            while name in found:
                name, number = f"{wanted} ({number})", number + 1
            found[name] = attrs.evolve(job, name=name)
    if errors and not found:
        raise errors[0]
    return list(found.values())


def survey(sources: Sequence[str], index: str, group_by: Sequence[str]) -> Fleet:
    """Return the fleet of the folders, prefixes and accounts among some sources."""
    places = [source for source in sources if "://" in source or is_account(source) or Path(source).exists()]
    return build_fleet(places, group_by=group_by or GROUP_BY, index=open_storage(index), progress=False)
