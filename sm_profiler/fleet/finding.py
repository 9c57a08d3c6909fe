"""The jobs of a fleet, before they are read: those in a folder or an S3 prefix, and the training jobs of an account."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.fleet import description as descriptions
from sm_profiler.fleet import sanitize
from sm_profiler.fleet.model import FleetJob
from sm_profiler.jobs.finding import claimed_name
from sm_profiler.jobs.listing import PAGE, Place, find_places
from sm_profiler.metrics.ends import StoredEnd
from sm_profiler.printable import one_line
from sm_profiler.report import report_json
from sm_profiler.storage import FileInfo, LocalStorage, Storage

if TYPE_CHECKING:
    from sm_profiler.jobs.account import Account

DATASET = "/job="  # in the location of a job in a dataset of Parquet files


@attrs.frozen(eq=False)
class Loaded:
    """Files of a job: its description, its report.json, and where its profile is.

    Attributes:
        description: response of DescribeTrainingJob; empty if there is none.
        report: bytes of its report.json; None if there is none.
        place: a row with its name and its locations.
        profile: location to judge it from, as `source.open_source` takes it; "" if there is none.
        changed: last change of a file of the profile, seconds since the epoch.
        reported: the same of its report.json.
        identity: text that changes if one of these files does; "" if the candidate has it already.
        error: why the others than the description cannot be read; "" if they can.
        end: the job's end in a report that is outdated.
    """

    description: Mapping[str, Any]
    report: bytes | None
    place: FleetJob
    profile: str = ""
    changed: float = 0.0
    reported: float = 0.0
    identity: str = ""
    error: str = ""
    end: StoredEnd | None = None


@attrs.frozen(eq=False)
class Candidate:
    """A job that may be in the index.

    Attributes:
        job: its location, the same in each run.
        name: its name, for an error.
        load: reads its small files; raises SourceError.
        identity: text that changes if one of its files does; "" if only `load` returns it.
        modified: last change of its description, for a job of an account.
        started: when it may have started at the earliest, or its last change; 0 if unknown.
        ended: it runs no more; False if unknown.
    """

    job: str
    name: str
    load: Callable[[], Loaded]
    identity: str = ""
    modified: str = ""
    started: float = 0.0
    ended: bool = False

    @property
    def place(self) -> str:
        """Its folder or URI, or its ARN."""
        root, *inner = self.job.split("\n")
        return "/".join([root.rstrip("/"), *filter(None, inner[:1])])


def candidates_below(storage: Storage) -> tuple[list[Candidate], tuple[str, ...]]:
    """Return the jobs below a storage's root, and sentences about what was left out."""
    if isinstance(storage, LocalStorage) and not storage.root.is_dir():
        raise SourceError(f"{storage.uri} is not a folder")
    found = find_places(storage)
    shared = {above for place in found.places for above in _above(place.folder)}
    return [_candidate_of(storage, place, shared) for place in found.places], found.notes


def _above(folder: str) -> list[str]:
    """Return the folders around a job's folder."""
    parts = folder.split("/")
    return ["/".join(parts[:number]) for number in range(len(parts))] if folder else []


def _claimed(storage: Storage, place: Place, shared: Collection[str]) -> str:
    """Return the name of the job that was the first in a folder of several, as the others there are named; else ""."""
    if not isinstance(storage, LocalStorage) or place.folder not in shared or place.profile is None:
        return ""
    return claimed_name(storage.root / place.profile)


def _candidate_of(storage: Storage, place: Place, shared: Collection[str]) -> Candidate:
    """Return the candidate of a place that was found."""
    name = _claimed(storage, place, shared) or place.name or storage.uri.rstrip("/").rpartition("/")[2]
    return Candidate(
        job=f"{storage.uri}\n{place.folder}\n{place.dataset}",
        name=sanitize.name(name),
        load=partial(_load, storage, place, name),
        identity=place.identity,
        started=place.changed,
    )


def _load(storage: Storage, place: Place, name: str) -> Loaded:
    """Read the small files of a job."""
    profile = ""
    if place.dataset:
        profile = f"{_join(storage.uri, place.profile or '')}{DATASET}{quote(place.dataset, safe='')}"
    elif place.profile is not None:
        profile = _join(storage.uri, place.profile)
    found = _read(storage, place.description, descriptions.MAX_BYTES)
    description = descriptions.read_description(found) if found is not None else {}
    above = place.report.key.rpartition("/")[0] if place.report else ""
    row = FleetJob(sanitize.name(name), source=sanitize.sentence(profile or _join(storage.uri, place.folder)))
    try:
        has_page = place.report is not None and storage.exists(
            _join(above, PAGE) if above else PAGE
        )  # for a link to it
        report = _read(storage, place.report, report_json.MAX_BYTES)
    except SourceError as error:
        return Loaded(description, None, row, error=one_line(error))
    return Loaded(
        description,
        report,
        attrs.evolve(row, report=sanitize.sentence(_join(storage.uri, above)) if has_page else ""),
        profile,
        place.newest,
        place.report.mtime if place.report else 0.0,
        place.identity,
    )


def _read(storage: Storage, info: FileInfo | None, most: int) -> bytes | None:
    if info is None:
        return None
    if info.size > most:
        raise SourceError(f"its {info.key.rpartition('/')[2]} is larger than {most >> 20} MB")
    return storage.read(info.key, 0, most + 1)


def _join(root: str, key: str) -> str:
    return f"{root.rstrip('/')}/{key}" if key else root


def candidates_of(account: Account, since: float | None = None) -> Iterator[Candidate]:
    """Yield the jobs, the newest first."""
    for job in account.jobs(since):
        yield Candidate(
            job=job.arn or job.name,
            name=sanitize.name(job.name),
            load=partial(_load_described, account, job.name, job.arn),
            modified=job.modified,
            started=job.created,
            ended=job.ended,
        )


def _load_described(account: Account, name: str, arn: str) -> Loaded:
    """Describe a job, and read its report if there is one; what its description has is known even if its files are denied."""
    description = account.describe(name)
    row = FleetJob(sanitize.name(name), source=sanitize.sentence(arn))
    try:
        description["Tags"] = account.tags(arn) if arn else []
        found = account.place(description, name)
        if found is None:
            return Loaded(description, None, row)
        return attrs.evolve(_load(*found, name), description=description)
    except SourceError as error:
        return Loaded(description, None, row, error=one_line(error))
