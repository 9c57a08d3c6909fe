"""Opening of a profiler output by folder, s3:// URI or name of a training job."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from sm_profiler.errors import SourceError
from sm_profiler.source.profile import Options, ProfileSource
from sm_profiler.storage import LocalStorage, Storage, open_storage

OUTPUT = "profiler-output"
_JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")


class NoProfilerDataError(SourceError):
    """A folder or prefix without profiler data, which a running job may still write."""


def open_source(  # noqa: PLR0913 - keyword arguments, one an independent choice
    where: str | os.PathLike[str] | Storage,
    *,
    cache: bool = True,
    strict: bool = False,
    client: Any = None,
    memory_limit: int | None = None,
    processes: int | None = None,
    progress: bool | None = None,
) -> ProfileSource:
    """Open the profiler output of a folder, an s3:// URI or a training job.

    Args:
        where: the folder or URI of a `profiler-output` (or of the job's folder around it), the name of a training job,
            or a storage.
        cache: keep a columnar copy for the next time, and use an existing one.
        strict: raise an error for every lost record.
        client: a boto3 S3 client to use.
        memory_limit: bytes of files and rows in flight, besides the returned columns.
        processes: number of parsing processes; default: one per processor, for enough data.
        progress: show a progress bar on standard error; default: for long reads on a terminal.

    Raises:
        SourceError: it does not exist, cannot be reached, or holds no profiler data.
    """
    options = Options(strict, cache, memory_limit, processes, progress)
    description = None
    if isinstance(where, str) and _JOB_NAME.fullmatch(where) and not Path(where).exists():
        storage, description = _of_job(where, client)
    else:
        storage = _storage(where, client) if isinstance(where, (str, os.PathLike)) else where
    source = ProfileSource(storage, options)
    source.description = description
    if source.files or source.other_files:
        return source
    if isinstance(where, (str, os.PathLike)) and not storage.uri.rstrip("/").endswith(OUTPUT):
        inner = ProfileSource(_storage(f"{storage.uri.rstrip('/')}/{OUTPUT}", client), options)
        if inner.files or inner.other_files:
            return inner
    if isinstance(storage, LocalStorage) and not storage.root.is_dir():
        raise SourceError(f"{storage.uri} is not a folder")
    raise NoProfilerDataError(f"{storage.uri} holds no profiler data (no files under system/ or framework/)")


def _storage(where: str | os.PathLike[str], client: Any) -> Storage:
    text = os.fspath(where)
    if "://" not in text and Path(text).is_file():
        raise SourceError(f"{text} is a file, not a folder of profiler output")
    return open_storage(text, client=client)


def _of_job(name: str, client: Any) -> tuple[Storage, dict[str, Any]]:
    """Return the profiler output of a training job, and the job's description."""
    from sm_profiler.source.job import describe, output_of  # noqa: PLC0415 - boto3 takes a third of a second to load

    try:
        job = describe(name, region=os.environ.get("AWS_REGION") or None)  # boto3 reads AWS_DEFAULT_REGION only
        place = output_of(job, name)
    except SourceError as error:
        if type(error.__cause__).__name__ != "NoRegionError":  # botocore's, not imported for its name
            raise
        raise SourceError(
            f"there is no folder {name}; to look up a training job of that name, set a region (AWS_REGION)"
        ) from error
    return open_storage(place, client=client), job
