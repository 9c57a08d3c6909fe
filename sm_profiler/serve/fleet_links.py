"""Links from the fleet's page to the live pages of its jobs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from posixpath import basename, dirname

from sm_profiler.fleet.model import FleetJob
from sm_profiler.fleet.page_rows import link
from sm_profiler.fleet.texts import sentence
from sm_profiler.serve.jobs import Found
from sm_profiler.source.naming import ACCOUNT, OUTPUTS, is_account

ELSEWHERE = "live://"  # a base for which there are no links to files of this machine


def place_of(where: str) -> str:
    """Return a location of a job as rows of a fleet write it: absolute, without the folder of the profile in it."""
    if is_account(where):
        return where
    place = where.rstrip("/") if "://" in where else os.path.abspath(where)  # noqa: PTH100 - `..` is taken out, links stay
    while basename(place) in OUTPUTS:
        place = dirname(place)
    return sentence(place)


def pages_of(jobs: Iterable[Found]) -> dict[str, str]:
    """Return the identifiers of jobs by their locations."""
    return {place_of(one.where): one.id for one in jobs}


def address_of(job: FleetJob, pages: Mapping[str, str]) -> str:
    """Return the address of a job's live page, relative to the fleet's; else that of its report on the web; "" without one."""
    region = job.arn.split(":")[3] if job.arn.count(":") > 3 else ""  # noqa: PLR2004 - arn:aws:sagemaker:REGION:…
    found = pages.get(f"{ACCOUNT}{region}/{job.name}") or (job.source and pages.get(place_of(job.source)))
    return f"jobs/{found}" if found else link(job, ELSEWHERE)
