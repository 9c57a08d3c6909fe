"""The jobs in the sources that a server was started with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sm_profiler.errors import SourceError
from sm_profiler.exporters.mcp.library import Job
from sm_profiler.fleet.places import find_places
from sm_profiler.printable import printable
from sm_profiler.storage import open_storage


def find_jobs(sources: Sequence[str]) -> list[Job]:
    """Return the jobs in folders, prefixes, and the training jobs named; of equal names, later ones get a number.

    Raises:
        SourceError: none of the sources can be listed.
    """
    found: dict[str, Job] = {}
    errors = []
    for source in sources:
        try:
            jobs = list(_jobs_of(source))
        except SourceError as error:
            errors.append(error)
            continue
        for job in jobs:
            name, number = job.name, 2
            while name in found:
                name, number = f"{job.name} ({number})", number + 1
            found[name] = Job(name, job.where, job.changed)
    if errors and not found:
        raise errors[0]
    return list(found.values())


def _jobs_of(source: str) -> Iterator[Job]:
    """Yield the jobs of a source."""
    if "://" not in source and not Path(source).exists():
        if "/" in source:
            raise SourceError(f"{printable(source)} does not exist")
        yield Job(source, source)  # the name of a training job
        return
    root = source.rstrip("/")
    for place in find_places(open_storage(source)).places:
        if place.dataset:
            yield Job(place.dataset, f"{root}/{place.folder}", place.changed)
        elif place.profile is not None:
            where = f"{root}/{place.profile}" if place.profile else root
            name = place.name or Path(root).name
            yield Job(printable(name)[:200], where, place.changed)
