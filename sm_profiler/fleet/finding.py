"""The jobs of a fleet before they are read: where they are, and the service's description of each, with every type checked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.fleet.model import FleetJob
from sm_profiler.jobs.finding import claimed_name
from sm_profiler.jobs.listing import PAGE, JobPlace, find_places
from sm_profiler.metrics.attempts import MAX_SECONDS, MIN_SECONDS
from sm_profiler.metrics.ends import StoredEnd
from sm_profiler.metrics.startup import LONGEST_S, job_seconds
from sm_profiler.printable import cut, one_line, printable
from sm_profiler.report import report_json
from sm_profiler.storage import FileInfo, LocalStorage, Storage

if TYPE_CHECKING:
    from sm_profiler.jobs.account import Account

NAME, SENTENCE = 200, 600  # characters
MAX_TAGS = 60  # the service allows 50
# endings of names: times, dates, numbers and random letters after them
_ENDING = re.compile(
    r"(?:[-_.](?:[0-9]{4}-[0-9]{2}-[0-9]{2}(?:-[0-9]{2}){0,3}(?:-[0-9]{1,6})?|[0-9]+|v[0-9]+|(?=[a-z0-9]*[0-9])(?=[0-9]*[a-z])[a-z0-9]{6,}))+$"
)
_LONGEST_STEM_OF = 256

MAX_DESCRIPTION_BYTES = 4 << 20
MAX_INSTANCES = 100_000
MAX_DEPTH = 6  # of objects in a description
STAGE_OF = {  # secondary status → stage
    "Starting": "waiting", "Pending": "waiting", "LaunchingMLInstances": "waiting", "PreparingTrainingStack": "waiting",
    "DownloadingTrainingImage": "image", "Downloading": "download", "Training": "training", "Interrupted": "waiting",
    "Restarting": "waiting", "Uploading": "uploading",
}  # fmt: skip
_USER = ("user", "owner", "username", "created-by", "createdby", "sagemaker:user-profile-arn")
_GIT = ("git", "git-commit", "git_commit", "commit", "git-sha", "revision")
_SHORT_HASH = 12
_SCRIPT = "sagemaker_program"
_SERVICE = ("sagemaker_", "_tuning_")  # begin the names of hyperparameters that no user chose
_SECRET = re.compile(r"pass(?:word|wd|phrase)?(?:[_-]|$)|pwd|secret|token(?:$|[_-](?!id|size|len))|key(?:$|[_-])|credential|auth(?:$|[_-])", re.IGNORECASE)  # fmt: skip
MAX_HYPERPARAMETERS = 100  # as the service allows

DATASET = "/job="  # in the location of a job in a dataset of Parquet files


def safe_name(text: object) -> str:
    return _cut(text, NAME)


def safe_sentence(text: object) -> str:
    return _cut(text, SENTENCE)


def _cut(text: object, length: int) -> str:
    raw = str(text)[: length + 1]
    return cut(printable(" ".join(raw.split()) if "\n" in raw or "\t" in raw else raw), length)


def stem_of(job: str) -> str:
    """Return a job's name without the times, numbers and random letters at its end; the name if nothing is left."""
    short = job[:_LONGEST_STEM_OF]
    return _ENDING.sub("", short.lower()) or short


def read_description(data: bytes) -> dict[str, Any]:
    """Read a job.json: the response of DescribeTrainingJob, with the job's `Tags` if they are wanted.

    Raises:
        SourceError: it is damaged or too large.
    """
    if len(data) > MAX_DESCRIPTION_BYTES:
        raise SourceError(f"its job.json is larger than {MAX_DESCRIPTION_BYTES >> 20} MB")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SourceError("its job.json is not a JSON object")
    return found


def described(job: FleetJob, description: Mapping[str, Any]) -> FleetJob:
    """Return a row with the service's description of its job; what is missing or of another type is left out."""
    resources, algorithm = _mapping(description, "ResourceConfig"), _mapping(description, "AlgorithmSpecification")
    types = _types(resources)
    tags = _tags(description.get("Tags"))
    lower = {key.lower(): value for key, value in tags.items()}
    hyper, environment = _mapping(description, "HyperParameters"), _mapping(description, "Environment")
    git = next((lower[key] for key in _GIT if lower.get(key)), "") or next(
        (str(found[key]) for found in (environment, hyper) for key in ("GIT_COMMIT", "git_commit") if found.get(key)),
        "",
    )
    user = next((lower[key] for key in _USER if lower.get(key)), "")
    stages, interruptions = _stages(description.get("SecondaryStatusTransitions"))
    started, ended = _time(description.get("TrainingStartTime")), _time(description.get("TrainingEndTime"))
    training = job_seconds(description.get("TrainingTimeInSeconds"))
    if training is None and started is not None and ended is not None and ended > started:
        training = job_seconds(ended - started)
    billable = job_seconds(description.get("BillableTimeInSeconds"))
    return attrs.evolve(
        job,
        name=_text(description, "TrainingJobName") or safe_name(job.name),
        arn=_text(description, "TrainingJobArn"),
        status=_text(description, "TrainingJobStatus"),
        failure=safe_sentence(description.get("FailureReason") or ""),
        created=_time(description.get("CreationTime")),
        started=started,
        ended=ended,
        instance_type=safe_name(" + ".join(types)),
        instances=max(sum(types.values()), 1),
        types=types if len(types) > 1 else {},
        spot=description.get("EnableManagedSpotTraining") is True,
        billable_s=billable,
        billed_by="" if billable is None else "billable time",
        training_s=training,
        stages=stages,
        interruptions=interruptions,
        user=safe_name(user.rpartition("/")[2] if user.startswith("arn:") else user),
        image=_text(algorithm, "TrainingImage") or _text(algorithm, "AlgorithmName"),
        script=_plain(hyper.get(_SCRIPT, "")),
        hyperparameters=_hyperparameters(hyper),
        git=safe_name(git)[: _SHORT_HASH if re.fullmatch(r"[0-9a-f]{40}", git) else None],
        tuning_job=_text(description, "TuningJobArn").rpartition("/")[2],
        tags=tags,
    )


def as_json(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description as plain data: times become seconds, and a job is judged from it as from the original."""
    return {as_text(str(key)): _plain_data(str(key), value) for key, value in description.items()}


def as_text(text: str) -> str:
    """Return a text that may be encoded: JSON and names of files may hold what is no Unicode."""
    return text.encode("utf-8", "backslashreplace").decode()


def _plain_data(key: str, value: object, depth: int = 0) -> Any:
    if key.endswith("Time"):
        return _time(value)
    if isinstance(value, Mapping) and depth < MAX_DEPTH:
        return {as_text(str(inner)): _plain_data(str(inner), one, depth + 1) for inner, one in value.items()}
    if isinstance(value, (list, tuple)) and depth < MAX_DEPTH:
        return [_plain_data("", one, depth + 1) for one in value]
    if isinstance(value, str):
        return as_text(value)
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else None


def _types(resources: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of instances of each type, of which a heterogeneous cluster has several."""
    groups = resources.get("InstanceGroups")
    rows = [row for row in groups if isinstance(row, Mapping)] if isinstance(groups, list) and groups else [resources]
    found: dict[str, int] = {}
    for row in rows[:50]:
        kind, count = row.get("InstanceType"), row.get("InstanceCount")
        if isinstance(kind, str) and isinstance(count, int) and 0 < count <= MAX_INSTANCES:
            found[safe_name(kind)] = found.get(safe_name(kind), 0) + count
    return found


def _stages(rows: object) -> tuple[dict[str, float], int]:
    """Return the seconds of each stage, and how often the job was interrupted."""
    found: dict[str, float] = {}
    interruptions = 0
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, Mapping):
            continue
        interruptions += row.get("Status") == "Interrupted"
        stage = STAGE_OF.get(str(row.get("Status")))
        start, end = _time(row.get("StartTime")), _time(row.get("EndTime"))
        if stage is not None and start is not None and end is not None and 0 <= end - start <= LONGEST_S:
            found[stage] = found.get(stage, 0.0) + end - start
    return found, interruptions


def _tags(found: object) -> dict[str, str]:
    rows = [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []
    tags = {row["Key"]: row.get("Value", "") for row in rows if isinstance(row.get("Key"), str)}
    return {safe_name(key): safe_name(value) for key, value in list(tags.items())[:MAX_TAGS]}


def _hyperparameters(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the hyperparameters of the user, without those whose names are those of secrets."""
    own = [(str(name), value) for name, value in found.items() if not str(name).startswith(_SERVICE)]
    return {safe_name(name): _plain(value) for name, value in own[:MAX_HYPERPARAMETERS] if not _SECRET.search(name)}


def _plain(value: object) -> str:
    """Return a hyperparameter, which the SDK encodes as JSON: a text there has quotes."""
    text = str(value)
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    return safe_name(text)


def _mapping(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = found.get(key)
    return value if isinstance(value, Mapping) else {}


def _text(found: Mapping[str, Any], key: str) -> str:
    value = found.get(key)
    return safe_name(value) if isinstance(value, str) else ""


def _time(value: object) -> float | None:
    """Return a time as seconds since the epoch, from boto3's datetime or the CLI's text."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return None
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and MIN_SECONDS < value < MAX_SECONDS else None  # type: ignore[operator, arg-type]


@attrs.frozen(eq=False)
class Loaded:
    """Files of a job: its description, its report.json, and where its profile is.

    Attributes:
        description: response of DescribeTrainingJob; empty if there is none.
        report: bytes of its report.json; None if there is none.
        place: a row with its name and its locations.
        profile: location to judge it from, as `source.open_source` takes it; "" if there is none.
        changed: last change of a file of the profile, seconds since the epoch.
        reported: the same of its report.json.
        identity: text that changes if one of these files does; "" if the candidate has it already.
        error: why the others than the description cannot be read; "" if they can.
        end: the job's end in a report that is outdated.
    """

    description: Mapping[str, Any]
    report: bytes | None
    place: FleetJob
    profile: str = ""
    changed: float = 0.0
    reported: float = 0.0
    identity: str = ""
    error: str = ""
    end: StoredEnd | None = None


@attrs.frozen(eq=False)
class IndexCandidate:
    """A job that may be in the index.

    Attributes:
        job: its location, the same in each run.
        name: its name, for an error.
        load: reads its small files; raises SourceError.
        identity: text that changes if one of its files does; "" if only `load` returns it.
        modified: last change of its description, for a job of an account.
        started: when it may have started at the earliest, or its last change; 0 if unknown.
        ended: it runs no more; False if unknown.
    """

    job: str
    name: str
    load: Callable[[], Loaded]
    identity: str = ""
    modified: str = ""
    started: float = 0.0
    ended: bool = False

    @property
    def place(self) -> str:
        """Its folder or URI, or its ARN."""
        root, *inner = self.job.split("\n")
        return "/".join([root.rstrip("/"), *filter(None, inner[:1])])


def candidates_below(storage: Storage) -> tuple[list[IndexCandidate], tuple[str, ...]]:
    """Return the jobs below a storage's root, and sentences about what was left out."""
    if isinstance(storage, LocalStorage) and not storage.root.is_dir():
        raise SourceError(f"{storage.uri} is not a folder")
    found = find_places(storage)
    shared = {above for place in found.places for above in _above(place.folder)}
    return [_candidate_of(storage, place, shared) for place in found.places], found.notes


def _above(folder: str) -> list[str]:
    parts = folder.split("/")
    return ["/".join(parts[:number]) for number in range(len(parts))] if folder else []


def _claimed(storage: Storage, place: JobPlace, shared: Collection[str]) -> str:
    """Return the name of the job that was the first in a folder of several, as the others there are named; else ""."""
    if not isinstance(storage, LocalStorage) or place.folder not in shared or place.profile is None:
        return ""
    return claimed_name(storage.root / place.profile)


def _candidate_of(storage: Storage, place: JobPlace, shared: Collection[str]) -> IndexCandidate:
    name = _claimed(storage, place, shared) or place.name or storage.uri.rstrip("/").rpartition("/")[2]
    return IndexCandidate(
        job=f"{storage.uri}\n{place.folder}\n{place.dataset}",
        name=safe_name(name),
        load=partial(_load, storage, place, name),
        identity=place.identity,
        started=place.changed,
    )


def _load(storage: Storage, place: JobPlace, name: str) -> Loaded:
    profile = ""
    if place.dataset:
        profile = f"{_join(storage.uri, place.profile or '')}{DATASET}{quote(place.dataset, safe='')}"
    elif place.profile is not None:
        profile = _join(storage.uri, place.profile)
    found = _read(storage, place.description, MAX_DESCRIPTION_BYTES)
    description = read_description(found) if found is not None else {}
    above = place.report.key.rpartition("/")[0] if place.report else ""
    row = FleetJob(safe_name(name), source=safe_sentence(profile or _join(storage.uri, place.folder)))
    try:
        has_page = place.report is not None and storage.exists(
            _join(above, PAGE) if above else PAGE
        )  # for a link to it
        report = _read(storage, place.report, report_json.MAX_BYTES)
    except SourceError as error:
        return Loaded(description, None, row, error=one_line(error))
    return Loaded(
        description,
        report,
        attrs.evolve(row, report=safe_sentence(_join(storage.uri, above)) if has_page else ""),
        profile,
        place.newest,
        place.report.mtime if place.report else 0.0,
        place.identity,
    )


def _read(storage: Storage, info: FileInfo | None, most: int) -> bytes | None:
    if info is None:
        return None
    if info.size > most:
        raise SourceError(f"its {info.key.rpartition('/')[2]} is larger than {most >> 20} MB")
    return storage.read(info.key, 0, most + 1)


def _join(root: str, key: str) -> str:
    return f"{root.rstrip('/')}/{key}" if key else root


def candidates_of(account: Account, since: float | None = None) -> Iterator[IndexCandidate]:
    """Yield the jobs, the newest first."""
    for job in account.jobs(since):
        yield IndexCandidate(
            job=job.arn or job.name,
            name=safe_name(job.name),
            load=partial(_load_described, account, job.name, job.arn),
            modified=job.modified,
            started=job.created,
            ended=job.ended,
        )


def _load_described(account: Account, name: str, arn: str) -> Loaded:
    """Describe a job, and read its report if there is one; what its description has is known even if its files are denied."""
    description = account.describe(name)
    row = FleetJob(safe_name(name), source=safe_sentence(arn))
    try:
        description["Tags"] = account.tags(arn) if arn else []
        found = account.place(description, name)
        if found is None:
            return Loaded(description, None, row)
        return attrs.evolve(_load(*found, name), description=description)
    except SourceError as error:
        return Loaded(description, None, row, error=one_line(error))
