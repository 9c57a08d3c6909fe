"""Names of sources and jobs."""

from __future__ import annotations

ACCOUNT = "account:"  # a source: the training jobs of the account in the region that follows
OUTPUTS = ("profiler-output", "profiler", "output")  # folders of a profile in its job's folder


def is_account(source: str) -> bool:
    """Return whether a source is `account:REGION`, or a job of one."""
    return source.startswith(ACCOUNT)


def split_account(where: str) -> tuple[str, str]:
    """Return region and job of `account:REGION/JOB`; the job is "" for the whole account."""
    region, _, name = where.removeprefix(ACCOUNT).partition("/")
    return region, name


def job_name(uri: str) -> str:
    """Return a job's name from the location of its profile: the folder that contains `profiler-output`."""
    path = [part for part in uri.rpartition("://")[2].split("/") if part]
    while len(path) > 1 and path[-1] in OUTPUTS:
        path.pop()
    return path[-1] if path else "training job"
