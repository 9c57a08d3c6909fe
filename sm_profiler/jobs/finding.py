"""Find the jobs of a source."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from sm_profiler.jobs.folders import jobs_below
from sm_profiler.jobs.job import Job, State
from sm_profiler.jobs.listing import MAX_REPORT_BYTES, Place, find_places
from sm_profiler.source.naming import ACCOUNT, OUTPUTS, is_account, job_name, not_a_folder, split_account
from sm_profiler.storage import Storage, open_storage

if TYPE_CHECKING:
    from sm_profiler.jobs.account import Account

MAX_OF_ACCOUNT = 200  # the newest: two requests
UPLOADED_S = 900.0  # a profile on S3 whose files are older is taken for one of a job that no longer runs
_JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")


def find_jobs(source: str, *, expected: bool = False, accounts: dict[str, Account] | None = None) -> Iterator[Job]:
    """Yield the jobs of a source: itself, if it is one, else those below the folder or prefix.

    Args:
        source: a folder, an s3:// prefix, `account:REGION`, `account:REGION/JOB`, or the name of a training job.
        expected: take a folder that does not exist yet for a job.
        accounts: accounts that are open, by region; a new one is added.

    Raises:
        SourceError: it cannot be listed, or does not exist.
    """
    if is_account(source):
        yield from _of_account(source, {} if accounts is None else accounts)
    elif "://" in source:
        yield from _below_prefix(open_storage(source))
    elif Path(source).is_dir():
        yield from jobs_below(Path(source))
    elif expected or is_job_name(source):
        yield Job(source, source)
    else:
        raise not_a_folder(source)


def is_job_name(text: str) -> bool:
    """Return whether a training job may have this name."""
    return _JOB_NAME.fullmatch(text) is not None


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
            read_report=partial(read_report, storage, place),
        )
    if not places and not any(True for _ in storage.list()):  # a job that has written nothing yet
        yield Job(job_name(storage.uri), storage.uri)


def _location(root: str, place: Place) -> str:
    """Return what `open_source` takes: the job's folder, if it looks for the profile there."""
    profile = place.profile or ""
    usual = {place.folder, f"{place.folder}/{OUTPUTS[0]}".lstrip("/")}
    below = place.folder if place.dataset or profile in usual else profile
    return f"{root}/{below}" if below else root


def _of_account(source: str, accounts: dict[str, Account]) -> Iterator[Job]:
    region, name = split_account(source)
    if name:
        yield Job(name, source)
        return
    if region not in accounts:
        from sm_profiler.jobs.account import Account as Opened  # noqa: PLC0415 - boto3 takes a third of a second to load

        accounts[region] = Opened.open(region)
    account = accounts[region]
    for one in islice(account.jobs(), MAX_OF_ACCOUNT):
        yield Job(
            one.name,
            f"{ACCOUNT}{account.region}/{one.name}",
            one.created,
            "ended" if one.ended else "running",
            identity=one.modified,
            read_report=partial(_report_in_account, account, one.name),
        )


def _report_in_account(account: Account, name: str) -> bytes | None:
    found = account.place(account.describe(name), name)
    return read_report(*found) if found else None


def read_report(storage: Storage, place: Place) -> bytes | None:
    """Return the report.json of a job; None without one.

    Raises:
        SourceError: it cannot be read.
    """
    if place.report is None:
        return None
    return storage.read(place.report.key, 0, MAX_REPORT_BYTES + 1)
