"""Profiles and reports under a folder or prefix, found in one listing by their layout."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator

import attrs

from sm_profiler.formats.layout import END_MARKERS, hour_folder
from sm_profiler.printable import printable
from sm_profiler.source.opening import LAST_KEY, OUTPUTS
from sm_profiler.source.parquet.paths import PartKey
from sm_profiler.storage import FileInfo, Storage

REPORT, PAGE, DESCRIPTION = "report.json", "profiler-report.html", "job.json"
RULES = "rule-output"  # folder of the rules' results in a job's folder
MAX_KEYS = 20_000_000  # of a source: a listing of hours
MAX_JOBS = 200_000
MAX_REPORT_BYTES = 16 << 20
SKIP_AFTER = 1000  # files of a finished profile: a page of S3's listing
RECENT_S = 3600.0
NESTED = 3  # folders between a job and its report
_PROFILE = re.compile(
    r"(?:(?P<root>.*?)/)??(?P<kind>system|framework)/(?:incremental/|(?:[^/]+/)*pevents/|[^/]+/detailed_profiling/|training_job_end\.ts$)"
)
_HOUR = re.compile(r"(?P<above>.*)/(?P<hour>[0-9]{10})/[^/]+")
_PARQUET = re.compile(r"(?:(?P<root>.*)/)?(?P<rest>(?:system|events|steps|samples|files)/job=[^/]+/.*data\.parquet)")


@attrs.define
class JobPlace:
    """A job of a source.

    Attributes:
        folder: its folder in the source; "" for the source itself.
        profile: folder of its profile in the source; None if it has none.
        dataset: name of the job in a dataset of Parquet files; "" for a profile of JSON files.
        report, description: the newest report.json and job.json, or None.
        newest: last change of a file of the profile.
        files: number of its files that were listed.
        ended: an end marker was listed.
    """

    folder: str
    profile: str | None = None
    dataset: str = ""
    report: FileInfo | None = None
    description: FileInfo | None = None
    newest: float = 0.0
    files: int = 0
    ended: bool = False
    _digest: int = 0

    def add(self, info: FileInfo) -> None:
        """Count a file of the profile."""
        text = f"{info.key}\0{info.size}\0{info.etag or info.mtime}".encode("utf-8", "surrogatepass")
        # a sum, so that the order of the listing does not matter
        self._digest += int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
        self.newest = max(self.newest, info.mtime)
        self.files += 1
        self.ended = self.ended or info.key.endswith(END_MARKERS)

    @property
    def name(self) -> str:
        if self.dataset:
            return self.dataset
        parts = [part for part in (self.profile if self.profile is not None else self.folder).split("/") if part]
        if RULES in parts[1:]:  # <job>/rule-output/<rule>/…/report.json
            del parts[parts.index(RULES, 1) :]
        while len(parts) > 1 and parts[-1] in OUTPUTS:
            parts.pop()
        return parts[-1] if parts and parts[-1] not in OUTPUTS else ""

    @property
    def identity(self) -> str:
        """Text that changes if a file of the job changes."""
        others = [
            f"{file.key} {file.size} {file.etag or file.mtime}" if file else ""
            for file in (self.report, self.description)
        ]
        return "|".join([*others, str(self.files), f"{self._digest:x}"])

    @property
    def changed(self) -> float:
        """Last change of any of its files."""
        return max(self.newest, *(file.mtime for file in (self.report, self.description) if file), 0.0)


@attrs.frozen
class Listing:
    """The jobs of a source, and sentences about what was left out."""

    places: tuple[JobPlace, ...]
    notes: tuple[str, ...] = ()


def find_places(storage: Storage, *, recent_only: bool = False) -> Listing:
    """Return the jobs under a storage's root, in the order of their folders.

    Args:
        storage: the folder or prefix.
        recent_only: list only the first files of a long profile and those of the last two hours, which show that it runs.
    """
    profiles: dict[tuple[str, str], JobPlace] = {}
    reports: list[FileInfo] = []
    descriptions: list[FileInfo] = []
    notes = []
    for keys, info in enumerate(_listed(storage, profiles, recent_only=recent_only), 1):
        if keys > MAX_KEYS or len(profiles) + len(reports) > MAX_JOBS:
            notes.append(
                f"{printable(storage.uri)} contains more than {min(keys, MAX_KEYS):,} files or {MAX_JOBS:,} jobs; the rest was left out."
            )
            break
        base = info.key.rpartition("/")[2]
        if base == REPORT:
            reports.append(info)
        elif base == DESCRIPTION:
            descriptions.append(info)
    return Listing(tuple(_joined(list(profiles.values()), reports, descriptions)), tuple(notes))


def _listed(storage: Storage, profiles: dict[tuple[str, str], JobPlace], *, recent_only: bool) -> Iterator[FileInfo]:
    """Yield the files outside profiles, and add those in profiles to `profiles`."""
    after: str | None = None
    recent = hour_folder(round((time.time() - RECENT_S) * 1e6))
    ended: set[str] = set()  # profiles that are known to have ended
    while True:
        skip = None
        counts: dict[str, int] = {}
        for info in storage.list("", after):
            place, kind = _place_of(info.key, profiles)
            if place is None:
                yield info
                continue
            place.add(info)
            if kind is None:
                continue
            top = _join(place.profile or "", kind)
            counts[top] = counts.get(top, 0) + 1
            if counts[top] != SKIP_AFTER:
                continue
            if top in ended or _has_ended(storage, place):
                ended.add(top)
                place.ended = True
                skip = f"{top}/{LAST_KEY}"
                break
            if recent_only and (hour := _HOUR.fullmatch(info.key)) and hour["hour"] < recent:
                skip = f"{hour['above']}/{recent}"
                break
        if skip is None:
            return
        after = skip


def _has_ended(storage: Storage, place: JobPlace) -> bool:
    """Return whether a profile has ended, so that its other files need not be listed: none of them will change."""
    if storage.parallel_reads <= 1:  # a folder of this machine, which is listed faster than it is searched
        return False
    return any(storage.exists(_join(place.profile or "", marker)) for marker in END_MARKERS)


def _place_of(key: str, profiles: dict[tuple[str, str], JobPlace]) -> tuple[JobPlace | None, str | None]:
    """Return the profile that a file belongs to, and its top folder there."""
    if key.endswith(".parquet"):
        found = _PARQUET.fullmatch(key)
        part = PartKey.parse(found["rest"]) if found else None
        if found is None or part is None:
            return None, None
        root = found["root"] or ""
        return profiles.setdefault((root, part.job), JobPlace(_join(root, f"job={part.job}"), root, part.job)), None
    found = _PROFILE.match(key)
    if found is None:
        return None, None
    root = found["root"] or ""
    place = profiles.get((root, ""))
    if place is None:
        parts = root.split("/")
        while len(parts) > 1 and parts[-1] in OUTPUTS:
            parts.pop()
        folder = "" if len(parts) == 1 and parts[0] in OUTPUTS else "/".join(parts)
        place = profiles[root, ""] = JobPlace(folder, root)
    return place, found["kind"]


def _joined(
    places: list[JobPlace], reports: Iterable[FileInfo], descriptions: Iterable[FileInfo]
) -> Iterator[JobPlace]:
    """Yield the profiles with their reports and descriptions, then the reports without a profile."""
    by_folder = {place.folder: place for place in places if not place.dataset}
    names: dict[str, list[JobPlace]] = {}
    for place in places:
        names.setdefault(place.name, []).append(place)
    alone: dict[str, JobPlace] = {}
    for info in reports:
        above = info.key.rpartition("/")[0]
        same = names.get(above.rpartition("/")[2], ())
        owner = _above(above, by_folder) or (same[0] if len(same) == 1 else None)
        if owner is None:
            folder = _job_of_rules(above)
            owner = alone.setdefault(folder, JobPlace(folder))
        if owner.report is None or info.mtime > owner.report.mtime:
            owner.report = info
    by_folder |= alone
    below = _by_ancestors(alone)
    for info in descriptions:
        folder = info.key.rpartition("/")[0]
        under = below.get(folder, ())
        owner = _above(folder, by_folder) or (under[0] if len(under) == 1 else None)
        if owner is None:  # a job that was described and left no data, as many failed jobs
            owner = by_folder[folder] = alone[folder] = JobPlace(folder)
        if owner.description is None or info.mtime > owner.description.mtime:
            owner.description = info
    yield from places
    yield from alone.values()


def _job_of_rules(folder: str) -> str:
    """Return the job's folder of a folder of rule results; other folders unchanged."""
    parts = folder.split("/")
    return "/".join(parts[: parts.index(RULES, 1)]) if RULES in parts[1:] else folder


def _by_ancestors(places: dict[str, JobPlace]) -> dict[str, list[JobPlace]]:
    """Return the places under each folder, at most three levels deep."""
    found: dict[str, list[JobPlace]] = {}
    for start, place in places.items():
        folder = start
        for _ in range(NESTED):
            folder = folder.rpartition("/")[0]
            if not folder:
                break
            found.setdefault(folder, []).append(place)
    return found


def _above(folder: str, places: dict[str, JobPlace]) -> JobPlace | None:
    while True:
        if folder in places:
            return places[folder]
        if not folder:
            return None
        folder = folder.rpartition("/")[0]


def _join(root: str, key: str) -> str:
    return f"{root}/{key}" if root else key
