"""Names of sources and jobs."""

from __future__ import annotations

import os
import re

from sm_profiler.errors import SourceError

ACCOUNT = "account:"  # a source: the training jobs of the account in the region that follows
_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+")
_S3_TYPO = re.compile(r"s3[an]?:/*(?=[^/])")
_ARN = re.compile(r"arn:aws[a-z-]*:sagemaker:(?P<region>[a-z0-9-]+):\d*:training-job/(?P<job>[^/]+)")
OUTPUTS = ("profiler-output", "profiler", "output")  # folders of a profile in its job's folder


def given(where: str) -> str:
    """Return a source as it was meant: without the blanks and line ends that copying adds; a job for its ARN.

    Raises:
        SourceError: it is empty, as of a variable that is not set; "" must not mean the current folder.
    """
    text = where.strip()
    if not text:
        raise SourceError("the source is empty: name a folder, an s3:// URI or a training job")
    if os.path.lexists(where):
        return where
    if arn := _ARN.fullmatch(text):
        return f"{ACCOUNT}{arn['region']}/{arn['job']}"
    return text


def is_account(source: str) -> bool:
    """Return whether a source is `account:REGION`, or a job of one."""
    return source.startswith(ACCOUNT)


def split_account(where: str) -> tuple[str, str]:
    """Return region and job of `account:REGION/JOB`; the job is "" for the whole account.

    Raises:
        SourceError: that is no name of a region.
    """
    region, _, name = where.removeprefix(ACCOUNT).partition("/")
    if region and not _REGION.fullmatch(region):
        raise SourceError(f"{region!r} is not a region: write {ACCOUNT}REGION, such as {ACCOUNT}us-east-1")
    return region, name


def not_a_folder(where: str) -> SourceError:
    """Return the error for a source that does not exist, with a hint if it resembles one of another kind."""
    hint = ""
    if _REGION.fullmatch(where):
        hint = f"; for the training jobs of your account there, write {ACCOUNT}{where}"
    elif where == ACCOUNT.rstrip(":"):
        hint = f"; for the training jobs of your account, write {ACCOUNT}REGION"
    elif typo := _S3_TYPO.match(where):
        hint = f"; for a bucket, write s3://{where[typo.end() :]}"
    return SourceError(f"{where} is not a folder{hint}")


def job_name(uri: str) -> str:
    """Return a job's name from the location of its profile: the folder that contains `profiler-output`."""
    path = [part for part in uri.rpartition("://")[2].split("/") if part]
    while len(path) > 1 and path[-1] in OUTPUTS:
        path.pop()
    return path[-1] if path else "training job"
