"""The jobs in the sources that a server was started with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sm_profiler.errors import SourceError
from sm_profiler.exporters.mcp.library import Job
from sm_profiler.fleet.analysis import GROUP_BY
from sm_profiler.fleet.building import build_fleet
from sm_profiler.fleet.model import Fleet
from sm_profiler.jobs.finding import find_jobs
from sm_profiler.printable import printable
from sm_profiler.source.naming import is_account
from sm_profiler.storage import open_storage

MAX_NAME = 200  # characters


def jobs_of(sources: Sequence[str]) -> list[Job]:
    """Return the jobs in folders, prefixes and accounts, and the training jobs named; of equal names, later ones get a number.

    Raises:
        SourceError: none of the sources can be listed.
    """
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
            found[name] = Job(name, job.where, job.changed)
    if errors and not found:
        raise errors[0]
    return list(found.values())


def survey(sources: Sequence[str], index: str, group_by: Sequence[str]) -> Fleet:
    """Return the fleet of the folders, prefixes and accounts among some sources.

    Args:
        sources: folders, URIs, and names of training jobs, which are left out.
        index: folder of the index of jobs read before.
        group_by: keys of groups; none for the usual ones.

    Raises:
        SourceError: a source cannot be listed.
    """
    places = [source for source in sources if "://" in source or is_account(source) or Path(source).exists()]
    return build_fleet(places, group_by=group_by or GROUP_BY, index=open_storage(index), progress=False)
