"""Opening of a profiler output by folder, s3:// URI or name of a training job, or of some of its files by other processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sm_profiler.config.launched import Launched
from sm_profiler.errors import SourceError
from sm_profiler.formats.layout import FRAMEWORK, METADATA_SUFFIX, OUTPUT, SYSTEM, parse_path
from sm_profiler.monitor.run_state import read_state
from sm_profiler.printable import printable
from sm_profiler.source.open_files import with_left_files
from sm_profiler.source.parquet.paths import jobs_in, split_job
from sm_profiler.source.profile import Options, ProfileSource
from sm_profiler.storage import FileInfo, LocalStorage, Storage, open_storage, s3_uri

ACCOUNT = "account:"  # a source: the training jobs of the account in the region that follows
_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+")
_ARN = re.compile(r"arn:aws[a-z-]*:sagemaker:(?P<region>[a-z0-9-]+):\d*:training-job/(?P<job>[^/]+)")
_RELATIVE = {".", ".."}
OUTPUTS = (OUTPUT, "profiler", "output")  # folders of a profile in its job's folder

_SHOWN_JOBS = _SHOWN = 5
_LOOKED_AT = 2000  # files
LAST_KEY = "\U0010ffff"  # sorts after all others
_JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")

_PICKLE = (
    "is a pickle, as the dumps of PyTorch's flight recorder are; loading one can run any code, so it is not opened. To do: "
    "read it with PyTorch's torchfrtrace, or give the job's profile"
)

Listed = tuple[str, int, float, str]  # key, size, mtime, etag


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


def is_job_name(text: str) -> bool:
    """Return whether a training job may have this name."""
    return _JOB_NAME.fullmatch(text) is not None


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
    elif meant := s3_uri(where):
        hint = f"; for a bucket, write {meant}"
    return SourceError(f"{where} is not a folder{hint}")


def job_name(uri: str) -> str:
    """Return a job's name from the location of its profile: the folder that contains `profiler-output`."""
    if "://" not in uri and not _RELATIVE.isdisjoint(uri.split("/")):
        uri = os.path.abspath(uri)
    path = [part for part in uri.rpartition("://")[2].split("/") if part]
    while len(path) > 1 and path[-1] in OUTPUTS:
        path.pop()
    return (
        path[-1] if path and path[-1] not in _RELATIVE else "training job"
    )  # a report is written to a folder of this name


class NoProfilerDataError(SourceError):
    """A folder, prefix or training job without profiler data.

    Attributes:
        final: none can follow, as of a training job that has ended; else a running job may still write it.
        over: the training job has ended without one.
    """

    def __init__(self, message: str, *, final: bool = False, over: bool = False) -> None:
        super().__init__(message)
        self.final, self.over = final, over


def open_source(  # independent choices
    where: str | os.PathLike[str] | Storage,
    *,
    cache: bool = True,
    strict: bool = False,
    client: Any = None,
    memory_limit: int | None = None,
    processes: int | None = None,
    progress: bool | None = None,
    left_open: bool = True,
) -> ProfileSource:
    """Open the profiler output of a folder, an s3:// URI or a training job.

    Args:
        where: the folder or URI of a `profiler-output` (or of the job's folder around it), that of profiles in Parquet
            (`sm-profiler compact`; with several jobs, `ROOT/job=NAME`), the name of a training job (also
            `account:REGION/NAME`), or a storage.
        cache: keep a columnar copy for the next time, and use an existing one.
        strict: raise an error for every lost record.
        client: a boto3 S3 client to use.
        memory_limit: bytes of files and rows in flight, besides the returned columns.
        processes: number of parsing processes; default: one per processor, for enough data.
        progress: show a line of progress on standard error; default: for long reads on a terminal.
        left_open: read the files that killed processes left open in a local folder, too. A caller that follows a job, in
            which another process may complete them, leaves them for then.

    Raises:
        SourceError: it does not exist, cannot be reached, or contains no profile.
    """
    if isinstance(where, str):
        where = given(where)
    options = Options(strict, cache, memory_limit, processes, progress)
    if isinstance(where, str) and (named := _named(where)) is not None:
        return _open_job(*named, options, client)
    storage = _located(where, client)
    is_path = isinstance(where, (str, os.PathLike))
    source = ProfileSource(_complete(storage, wanted=left_open and is_path), options)
    if source.files or source.other_files:
        return source
    _check_readable(storage)
    if is_path and not storage.uri.rstrip("/").endswith(OUTPUT):
        inside = _storage(f"{storage.uri.rstrip('/')}/{OUTPUT}", client)
        inner = ProfileSource(_complete(inside, wanted=left_open), options)
        if inner.files or inner.other_files:
            return inner
    if is_path and (jobs := list(jobs_in(storage))):
        if len(jobs) > 1:
            some = ", ".join(jobs[:_SHOWN_JOBS]) + (" …" if len(jobs) > _SHOWN_JOBS else "")
            raise SourceError(
                f"{storage.uri} contains {len(jobs)} jobs: name one, as in {storage.uri}/job={quote(jobs[0], safe='')} ({some})"
            )
        return open_source(open_parquet(storage, jobs[0]), strict=strict, progress=progress)
    if isinstance(storage, LocalStorage) and not storage.root.is_dir():
        raise not_a_folder(storage.uri if where is storage else str(where))
    other = where_instead(os.fspath(where), storage, client) if isinstance(where, (str, os.PathLike)) else ""
    raise NoProfilerDataError(
        f"{storage.uri} does not contain a profile: {other or _how_it_ended(storage) or _pickles(storage) or 'there are no files under system/ or framework/'}"
    )


def _complete(storage: Storage, *, wanted: bool) -> Storage:
    """Return a storage with the files that were left open in it."""
    return with_left_files(storage) if wanted and isinstance(storage, LocalStorage) else storage


def _named(where: str) -> tuple[str, str] | None:
    """Return name and region of a training job that is named; None for other sources."""
    if is_account(where):
        region, name = split_account(where)
        if not name:
            one = f"{ACCOUNT}{region or 'us-east-1'}/my-training-job"
            raise SourceError(f"{where} is an account: name one of its jobs, as in {one}")
        return name, region
    return (where, "") if is_job_name(where) and not Path(where).exists() else None


def _located(where: str | os.PathLike[str] | Storage, client: Any) -> Storage:
    if not isinstance(where, (str, os.PathLike)):
        return where
    return _named_job(os.fspath(where), client) or _storage(where, client)


def _named_job(where: str, client: Any) -> Storage | None:
    """Return a job of a Parquet dataset, named as `ROOT/job=NAME`; None for other places."""
    split = split_job(where)
    if split is None or ("://" not in where and Path(where).exists()):
        return None
    root, job = split
    storage = _storage(root, client)
    jobs = set(jobs_in(storage))
    typed = where.rstrip("/").rpartition("/")[2].removeprefix("job=")  # a name with a % need not be escaped
    found = next((name for name in (job, typed) if name in jobs), None)
    return open_parquet(storage, found) if found is not None else None


def open_parquet(storage: Storage, job: str) -> Storage:
    """Return a job of a Parquet dataset.

    Raises:
        SourceError: Arrow is not installed.
    """
    try:
        from sm_profiler.source.parquet.storage import ParquetStorage  # needs Arrow
    except ImportError:
        raise SourceError("reading a profile in Parquet needs pyarrow: pip install 'sm-profiler[analysis]'") from None
    return ParquetStorage(storage, job)


def _check_readable(storage: Storage) -> None:
    """Raise an error if there is nothing because Parquet files are damaged."""
    for key, reason in getattr(storage, "unreadable", {}).items():
        raise SourceError(f"{storage.uri}: {key}: {reason}")


def _storage(where: str | os.PathLike[str], client: Any) -> Storage:
    text = os.fspath(where)
    if "://" not in text and Path(text).is_file():
        if _is_pickle(Path(text)):
            raise SourceError(f"{text} {_PICKLE}")
        raise SourceError(f"{text} is a file, not a folder of profiler output")
    return open_storage(text, client=client)


def _open_job(name: str, region: str, options: Options, client: Any) -> ProfileSource:
    """Open the profiler output of a training job, with the job's description.

    Raises:
        NoProfilerDataError: it has none, or it cannot be read; the message has the reason, from the request to S3, the
            description and the job's log.
    """
    from sm_profiler.source.job import (  # boto3 takes a third of a second to load
        describe,
        missing_profile,
        outputs_below,
        outputs_of,
    )

    try:
        job = describe(name, region=region or None)
    except SourceError as error:
        if not region and hasattr(error.__cause__, "response"):  # a folder may have been meant
            raise SourceError(f"{name} is not a folder, and {error}") from error.__cause__
        if type(error.__cause__).__name__ != "NoRegionError":  # botocore's, not imported for its name
            raise
        raise SourceError(
            f"there is no folder {name}; to look up a training job of that name, set a region (AWS_REGION)"
        ) from error
    places = outputs_of(job, name)
    problem = None
    for uri in outputs_below(places):
        try:
            source = ProfileSource(open_storage(uri, client=client), options)
        except SourceError as error:  # the profile may be in another place
            problem = problem or error
            continue
        if source.files or source.other_files:
            source.description = job
            return source
    launched = Launched.of(job)
    raise NoProfilerDataError(
        missing_profile(job, name, places, region=region, problem=problem),
        final=problem is not None or not launched.may_store_profile,
        over=problem is None and not launched.running,
    ) from problem


def _is_pickle(path: Path) -> bool:
    """Return whether a file begins as a pickle does, of any protocol since the second."""
    try:
        with path.open("rb") as file:
            return re.fullmatch(rb"\x80[\x02-\x05]", file.read(2)) is not None
    except OSError:
        return False


def _pickles(storage: Storage) -> str:
    """Return that a folder holds pickles, of which its user may expect that they are read; "" if it holds none."""
    root = storage.root if isinstance(storage, LocalStorage) else None
    files = islice(root.iterdir(), _LOOKED_AT) if root is not None else ()
    first = min((path.name for path in files if path.is_file() and _is_pickle(path)), default="")
    return f"{printable(first)} {_PICKLE}" if first else ""


def _how_it_ended(storage: Storage) -> str:
    """Return how a run ended that recorded nothing; "" if that is not known."""
    run = read_state(storage.root) if isinstance(storage, LocalStorage) else None
    return f"the script {run.outcome} before anything was recorded" if run is not None and run.is_over else ""


def profile_around(where: str, client: Any = None) -> str:
    """Return the profile that a folder or prefix is a part of; "" if it is in none."""
    remote = "://" in where
    scheme, _, path = where.rpartition("://") if remote else ("", "", str(Path(where).absolute()))
    parts = path.rstrip("/").split("/")
    for at in range(len(parts) - 1, 0, -1):
        if parts[at] not in (SYSTEM, FRAMEWORK):
            continue
        above = "/".join(parts[:at]) or "/"
        found = f"{scheme}://{above}" if remote else above
        try:
            files = open_storage(found, client=client).list(f"{parts[at]}/")
            if any(parse_path(info.key) is not None for info in islice(files, _LOOKED_AT)):
                return found
        except SourceError:  # the place itself is what is reported
            return ""
    return ""


def profiles_in(storage: Storage) -> list[str]:
    """Return the locations of the first profiles in a folder or prefix; a few more than are shown."""
    found: list[str] = []
    after: str | None = None
    while len(found) <= _SHOWN:
        root = next((root for info in islice(storage.list("", after), _LOOKED_AT) if (root := _root_of(info.key))), "")
        if not root:
            break
        found.append(f"{storage.uri.rstrip('/')}/{root.removesuffix(f'/{OUTPUT}')}")
        after = f"{root}/{LAST_KEY}"
    return found


def _root_of(key: str) -> str:
    """Return the folder of the profile that a file belongs to; "" if it belongs to none."""
    parts = key.split("/")
    for at, part in enumerate(parts[1:], 1):
        if part in (SYSTEM, FRAMEWORK) and parse_path("/".join(parts[at:])) is not None:
            return "/".join(parts[:at])
    return ""


def where_instead(where: str, storage: Storage, client: Any = None) -> str:
    """Return which place to name instead of one that holds no profile; "" if none is near."""
    if around := profile_around(where, client):
        return f"it is a folder inside of one: name {printable(around)}"
    found = profiles_in(storage)
    if not found:
        return ""
    if len(found) == 1:
        return f"there is one below it: name {printable(found[0])}"
    many = f"more than {_SHOWN}" if len(found) > _SHOWN else str(len(found))
    names = ", ".join(map(printable, found[:_SHOWN]))
    return f"there are {many} below it: name one of {names}, or read all of them with 'sm-profiler fleet' or 'sm-profiler serve'"


class ListedStorage:
    digest = contents = None  # what is kept for all files is not for some

    def __init__(self, base: Storage, infos: Iterable[FileInfo]) -> None:
        self._base, self._infos = base, sorted(infos, key=lambda info: info.key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[FileInfo]:
        for info in self._infos:
            if info.key.startswith(prefix) and info.key > (start_after or ""):
                yield info


def place_of(source: ProfileSource) -> tuple[str, str | None]:
    """Return the location that other processes open, and the job of a profile in Parquet.

    Raises:
        SourceError: other processes cannot open it.
    """
    storage: Any = source.storage
    job = getattr(storage, "job", None)
    return shared_location(storage.base if job is not None else storage), job


def shared_location(storage: Storage) -> str:
    """Return the location of a storage that other processes open.

    Raises:
        SourceError: other processes cannot open it.
    """
    if isinstance(storage, LocalStorage):
        return os.path.abspath(storage.uri)  # links stay as they are named
    if not str(storage.uri).startswith("s3://"):
        raise SourceError(f"{storage.uri} cannot be opened by other processes: use a folder or an s3:// URI")
    return storage.uri


def listed(source: ProfileSource, infos: Iterable[FileInfo]) -> list[Listed]:
    """Return files as data, with those with the times of detailed traces."""
    beside = [info for info in source.other_files if info.key.endswith(METADATA_SUFFIX)]
    return [(info.key, info.size, info.mtime, info.etag) for info in (*infos, *beside)]


def open_listed(uri: str, job: str | None, files: Iterable[Listed]) -> ProfileSource:
    """Open some files of a profile, in the process that reads them.

    Raises:
        SourceError: the location cannot be reached.
    """
    base: Any = open_storage(uri) if job is None else open_parquet(open_storage(uri), job)
    if job is not None:
        base.load()
    infos = [FileInfo(key, size, mtime, etag) for key, size, mtime, etag in files]
    return ProfileSource(ListedStorage(base, infos), Options(cache=False, processes=1, progress=False))
