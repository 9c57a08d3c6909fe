"""Find the jobs of a source: a folder, a prefix, a data set in Parquet, an account, or a single job."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

import attrs

from sm_profiler.formats.layout import END_MARKERS
from sm_profiler.jobs.listing import MAX_REPORT_BYTES, JobPlace, find_places
from sm_profiler.monitor.place import read_claim
from sm_profiler.monitor.run_state import STATE_FILE, read_state
from sm_profiler.source.open_files import profile_folder
from sm_profiler.source.opening import ACCOUNT, OUTPUTS, is_account, is_job_name, job_name, not_a_folder, split_account
from sm_profiler.source.parquet.paths import DATA, FILES
from sm_profiler.storage import LocalStorage, Storage, open_storage

if TYPE_CHECKING:
    from sm_profiler.jobs.account import Account

MAX_OF_ACCOUNT = 200  # the newest: two requests
UPLOADED_S = 900.0  # a profile on S3 whose files are older is taken for that of a job that no longer runs
WRITTEN_S = 10.0  # files of a job may be moved, or copied with its report, in this time
SILENT_S = 180.0  # the same for a profile on this machine
MAX_DEPTH = 5  # of folders in which profiles are searched
MAX_FOLDERS = 5000  # inspected; a whole disk is not searched
REPORTS = ("report.json", "profiler-report/report.json", "rule-output/ProfilerReport/profiler-output/report.json")
State = Literal["running", "ended", ""]
_PARTITION = "job="


def _no_report() -> bytes | None:
    return None


@attrs.frozen
class Job:
    """A job of a source.

    Attributes:
        name: its name; may contain any characters.
        where: its location, as `source.open_source` takes it.
        changed: when its files changed last, seconds since the epoch; 0 if that is not known.
        state: `running`, `ended`, or "" if that is not known.
        status: the account's word for the end of a training job: `completed`, `failed` or `stopped`; "" for others.
        identity: a text that changes with its report.
        read_report: returns the bytes of its report.json, None if it has none; raises SourceError.
        is_report_outdated: returns whether files of data were added after its report was written.
    """

    name: str
    where: str
    changed: float = 0.0
    state: State = ""
    status: str = attrs.field(default="", kw_only=True)
    identity: str = attrs.field(default="", eq=False)
    read_report: Callable[[], bytes | None] = attrs.field(default=_no_report, eq=False, repr=False)
    is_report_outdated: Callable[[], bool] = attrs.field(default=bool, eq=False, repr=False)


def find_jobs(source: str, *, expected: bool = False, accounts: dict[str, Account] | None = None) -> Iterator[Job]:
    """Yield the jobs of a source: itself if it is a job, else those under the folder or prefix.

    Args:
        source: a folder, an s3:// prefix, `account:REGION`, `account:REGION/JOB`, or the name of a training job.
        expected: take a folder that does not exist yet for a job.
        accounts: accounts that are open, by region; new ones are added.

    Raises:
        SourceError: it cannot be listed, or does not exist.
    """
    if is_account(source):
        yield from _in_account(source, {} if accounts is None else accounts)
    elif "://" in source:
        yield from _below_prefix(open_storage(source))
    elif Path(source).is_dir():
        yield from jobs_below(Path(source))
    elif expected or is_job_name(source):
        yield Job(source, source)
    else:
        raise not_a_folder(source)


def is_remote(where: str) -> bool:
    """Return whether a source is a URI, or in an account."""
    return "://" in where or is_account(where)


def local_folder(where: str) -> Path | None:
    """Return the folder of a source on this machine; None for anything else."""
    folder = Path(where)
    return folder if "://" not in where and folder.is_dir() else None


def training_job_of(where: str) -> tuple[str, str]:
    """Return name and region of the training job of a location, by its name or the prefix of its profile; "" for others."""
    if is_account(where):
        region, name = split_account(where)
        return name, region
    name = "" if local_folder(where) else job_name(where)
    is_job = is_job_name(name) and (name == where or where.startswith("s3://"))
    return name if is_job else "", ""


def _below_prefix(storage: Storage) -> Iterator[Job]:
    places = [place for place in find_places(storage, recent_only=True).places if place.profile is not None]
    for place in places:
        where = _location(storage.uri.rstrip("/"), place)
        state: State = "ended" if place.ended or place.dataset or time.time() - place.newest > UPLOADED_S else "running"
        yield Job(
            place.name or job_name(storage.uri),
            where,
            place.newest,
            state,
            identity=f"{place.report.etag or place.report.mtime}" if place.report else "",
            read_report=partial(_uploaded_report, storage, place),
        )
    if not places and not any(True for _ in storage.list()):  # a job that has written nothing yet
        yield Job(job_name(storage.uri), storage.uri)


def _location(root: str, place: JobPlace) -> str:
    """Return what `open_source` takes: the job's folder, if it looks for the profile there."""
    profile = place.profile or ""
    usual = {place.folder, f"{place.folder}/{OUTPUTS[0]}".lstrip("/")}
    below = place.folder if place.dataset or profile in usual else profile
    return f"{root}/{below}" if below else root


def _in_account(source: str, accounts: dict[str, Account]) -> Iterator[Job]:
    region, name = split_account(source)
    if name:
        yield Job(name, source)
        return
    if region not in accounts:
        from sm_profiler.jobs.account import Account as Opened  # boto3 takes a third of a second to load

        accounts[region] = Opened.open(region)
    account = accounts[region]
    for job in islice(account.jobs(), MAX_OF_ACCOUNT):
        yield Job(
            job.name,
            f"{ACCOUNT}{account.region}/{job.name}",
            job.created,
            "ended" if job.ended else "running",
            status=job.status.lower() if job.ended else "",
            identity=job.modified,
            read_report=partial(_report_in_account, account, job.name),
        )


def _report_in_account(account: Account, name: str) -> bytes | None:
    found = account.place(account.describe(name), name)
    return _uploaded_report(*found) if found else None


def _uploaded_report(storage: Storage, place: JobPlace) -> bytes | None:
    if place.report is None:
        return None
    return storage.read(place.report.key, 0, MAX_REPORT_BYTES + 1)


def jobs_below(folder: Path) -> Iterator[Job]:
    """Yield the folder itself if it is a job, else the jobs under it; of a data set in Parquet, all of its jobs."""
    if found := list(_jobs_at(folder)):
        yield from found
        return
    level, inspected = [folder], 0
    for _ in range(MAX_DEPTH):
        below = []
        for parent in level:
            with contextlib.suppress(OSError), os.scandir(parent) as entries:
                below += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        level = []
        for child in sorted(below):
            inspected += 1
            if inspected > MAX_FOLDERS:
                return
            if found := list(_jobs_at(child)):
                yield from found
            elif not child.name.startswith("."):
                level.append(child)


def claimed_name(folder: Path) -> str:
    """Return the name that the job of a profile has among the jobs of one folder; "" if no job has claimed it."""
    try:
        owner = read_claim(folder)
    except OSError:
        return ""
    return owner.folder if owner is not None else ""


def has_end_marker(folder: Path) -> bool:
    """Return whether a local profile is marked as complete."""
    base = profile_folder(folder)
    return any((base / marker).exists() for marker in END_MARKERS)


def _jobs_at(folder: Path) -> Iterator[Job]:
    """Yield what a folder is: the jobs of a data set, a profile or the folder around it, or a run without data so far."""
    tables = list((folder / FILES).glob(f"{_PARTITION}*/{DATA}"))
    if tables:
        yield from (_dataset_job(folder, path) for path in sorted(tables))
        return
    base = profile_folder(folder)
    if any((base / kind).is_dir() for kind in ("system", "framework")) or read_state(folder) is not None:
        yield _profile_job(folder, base)


def _dataset_job(root: Path, table: Path) -> Job:
    name = table.parent.name
    changed = _changed([table])
    return Job(unquote(name.removeprefix(_PARTITION)), f"{root}/{name}", changed, "ended", identity=str(changed))


def _profile_job(folder: Path, base: Path) -> Job:
    run, newest = read_state(folder), _changed(_latest(base))
    begun = _changed([folder / STATE_FILE])
    over = run.is_over if run is not None else has_end_marker(folder) or time.time() - newest > SILENT_S
    identity = " ".join(str(_changed([folder / report])) for report in REPORTS)
    return Job(
        job_name(str(folder.resolve())),
        str(folder),
        newest if newest or over else begun,
        "ended" if over else "running",
        identity=identity,
        read_report=partial(_read_report, folder),
        is_report_outdated=partial(_is_report_outdated, folder),
    )


def data_changed(folder: Path) -> float:
    """Return when a file of data was last added to a folder's profile, in seconds since the epoch; 0 if there is none."""
    return _changed(_latest_data(profile_folder(folder)))


def _latest(base: Path) -> Iterator[Path]:
    """Yield folders whose times change with a new file: those of the profile, and the last hours of both kinds."""
    yield from (base, base / "system", base / "framework")
    yield from _latest_data(base)


def _latest_data(base: Path) -> Iterator[Path]:
    for folder in (base / "system" / "incremental", base / "framework" / "pevents"):
        yield folder
        hours = sorted(folder.glob("[0-9]*")) if folder.is_dir() else []
        yield from hours[-1:]


def _changed(paths: Iterable[Path]) -> float:
    """Return when the latest of some files changed; 0 if there is none."""
    times = [0.0]
    for path in paths:
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def _is_report_outdated(folder: Path) -> bool:
    return data_changed(folder) > _changed([folder / report for report in REPORTS]) + WRITTEN_S


def _read_report(folder: Path) -> bytes | None:
    """Return the first of the reports in a job's folder; None if there is none."""
    for place in REPORTS:
        if (folder / place).is_file():
            return LocalStorage(folder).read(place, end=MAX_REPORT_BYTES)
    return None
