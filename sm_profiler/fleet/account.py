"""The training jobs of an account as candidates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import attrs

from sm_profiler.fleet import folders, texts
from sm_profiler.fleet.candidate import Candidate, Loaded
from sm_profiler.fleet.model import FleetJob
from sm_profiler.jobs.account import Account


def candidates_of(account: Account, since: float | None = None) -> Iterator[Candidate]:
    """Yield the jobs, the newest first.

    Args:
        account: the account.
        since: leave out jobs that were created before; seconds since the epoch.

    Raises:
        SourceError: they cannot be listed.
    """
    for one in account.jobs(since):
        yield Candidate(
            job=one.arn or one.name,
            name=texts.name(one.name),
            load=partial(load, account, one.name, one.arn),
            modified=one.modified,
            started=one.created,
            ended=one.ended,
        )


def load(account: Account, name: str, arn: str) -> Loaded:
    """Describe a job, and read its report if there is one.

    Raises:
        SourceError: a request failed.
    """
    description = account.describe(name)
    description["Tags"] = account.tags(arn) if arn else []
    found = account.place(description, name)
    if found is None:
        return Loaded(description, None, FleetJob(texts.name(name), source=texts.sentence(arn)))
    return attrs.evolve(folders.load(*found, name), description=description)
