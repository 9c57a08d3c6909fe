"""The jobs below a folder or an S3 prefix."""

from __future__ import annotations

from functools import partial
from urllib.parse import quote

from sm_profiler.errors import SourceError
from sm_profiler.fleet import description as descriptions
from sm_profiler.fleet import texts
from sm_profiler.fleet.candidate import Candidate, Loaded
from sm_profiler.fleet.model import FleetJob
from sm_profiler.jobs.listing import PAGE, Place, find_places
from sm_profiler.report import report_json
from sm_profiler.storage import FileInfo, LocalStorage, Storage

DATASET = "/job="  # in the location of a job in a dataset of Parquet files


def candidates_below(storage: Storage) -> tuple[list[Candidate], tuple[str, ...]]:
    """Return the jobs below a storage's root, and sentences about what was left out.

    Raises:
        SourceError: it cannot be listed, or is no folder.
    """
    if isinstance(storage, LocalStorage) and not storage.root.is_dir():
        raise SourceError(f"{storage.uri} is not a folder")
    found = find_places(storage)
    return [candidate_of(storage, place) for place in found.places], found.notes


def candidate_of(storage: Storage, place: Place) -> Candidate:
    """Return the candidate of a place that was found."""
    name = place.name or storage.uri.rstrip("/").rpartition("/")[2]
    return Candidate(
        job=f"{storage.uri}\n{place.folder}\n{place.dataset}",
        name=texts.name(name),
        load=partial(load, storage, place, name),
        identity=place.identity,
        started=place.changed,
    )


def load(storage: Storage, place: Place, name: str) -> Loaded:
    """Read the small files of a job.

    Raises:
        SourceError: one of them cannot be read.
    """
    profile = ""
    if place.dataset:
        profile = f"{_join(storage.uri, place.profile or '')}{DATASET}{quote(place.dataset, safe='')}"
    elif place.profile is not None:
        profile = _join(storage.uri, place.profile)
    found = _read(storage, place.description, descriptions.MAX_BYTES)
    above = place.report.key.rpartition("/")[0] if place.report else ""
    row = FleetJob(
        texts.name(name),
        source=texts.sentence(profile or _join(storage.uri, place.folder)),
        report=texts.sentence(_join(storage.uri, above)) if _has_page(storage, place, above) else "",
    )
    return Loaded(
        descriptions.read_description(found) if found is not None else {},
        _read(storage, place.report, report_json.MAX_BYTES),
        row,
        profile,
        place.newest,
        place.report.mtime if place.report else 0.0,
        place.identity,
    )


def _has_page(storage: Storage, place: Place, above: str) -> bool:
    """Return whether there is a page beside a job's report.json, for a link to it."""
    return place.report is not None and storage.exists(_join(above, PAGE) if above else PAGE)


def _read(storage: Storage, info: FileInfo | None, most: int) -> bytes | None:
    if info is None:
        return None
    if info.size > most:
        raise SourceError(f"its {info.key.rpartition('/')[2]} is larger than {most >> 20} MB")
    return storage.read(info.key, 0, most + 1)


def _join(root: str, key: str) -> str:
    return f"{root.rstrip('/')}/{key}" if key else root
