"""The response of DescribeTrainingJob as a row, from an account or a job.json, with every type checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.fleet import sanitize
from sm_profiler.fleet.model import FleetJob
from sm_profiler.metrics.attempts import MAX_SECONDS, MIN_SECONDS
from sm_profiler.metrics.startup import LONGEST_S, job_seconds

MAX_BYTES = 4 << 20
MAX_INSTANCES = 100_000
STAGE_OF = {  # secondary status → stage
    "Starting": "waiting", "Pending": "waiting", "LaunchingMLInstances": "waiting", "PreparingTrainingStack": "waiting",
    "DownloadingTrainingImage": "image", "Downloading": "download", "Training": "training", "Interrupted": "waiting",
    "Restarting": "waiting", "Uploading": "uploading",
}  # fmt: skip
_USER = ("user", "owner", "username", "created-by", "createdby", "sagemaker:user-profile-arn")
_GIT = ("git", "git-commit", "git_commit", "commit", "git-sha", "revision")
_SHORT_HASH = 12


def read_description(data: bytes) -> dict[str, Any]:
    """Read a job.json: the response of DescribeTrainingJob, with the job's `Tags` if they are wanted.

    Raises:
        SourceError: it is damaged or too large.
    """
    if len(data) > MAX_BYTES:
        raise SourceError(f"its job.json is larger than {MAX_BYTES >> 20} MB")
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
        name=_text(description, "TrainingJobName") or sanitize.name(job.name),
        arn=_text(description, "TrainingJobArn"),
        status=_text(description, "TrainingJobStatus"),
        failure=sanitize.sentence(description.get("FailureReason") or ""),
        created=_time(description.get("CreationTime")),
        started=started,
        ended=ended,
        instance_type=sanitize.name(" + ".join(types)),
        instances=max(sum(types.values()), 1),
        types=types if len(types) > 1 else {},
        spot=description.get("EnableManagedSpotTraining") is True,
        billable_s=billable,
        billed_by="" if billable is None else "billable time",
        training_s=training,
        stages=stages,
        interruptions=interruptions,
        user=sanitize.name(user.rpartition("/")[2] if user.startswith("arn:") else user),
        image=_text(algorithm, "TrainingImage") or _text(algorithm, "AlgorithmName"),
        git=sanitize.name(git)[: _SHORT_HASH if re.fullmatch(r"[0-9a-f]{40}", git) else None],
        tuning_job=_text(description, "TuningJobArn").rpartition("/")[2],
        tags=tags,
    )


def as_json(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a description that a report uses, as plain data: times become seconds."""
    rows = description.get("SecondaryStatusTransitions")
    shown = [
        {
            "Status": str(row.get("Status")),
            "StartTime": _time(row.get("StartTime")),
            "EndTime": _time(row.get("EndTime")),
        }
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, Mapping)
    ]
    return {"SecondaryStatusTransitions": shown}


def _types(resources: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of instances of each type, of which a heterogeneous cluster has several."""
    groups = resources.get("InstanceGroups")
    rows = [row for row in groups if isinstance(row, Mapping)] if isinstance(groups, list) and groups else [resources]
    found: dict[str, int] = {}
    for row in rows[:50]:
        kind, count = row.get("InstanceType"), row.get("InstanceCount")
        if isinstance(kind, str) and isinstance(count, int) and 0 < count <= MAX_INSTANCES:
            found[sanitize.name(kind)] = found.get(sanitize.name(kind), 0) + count
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
    return sanitize.tags({row.get("Key", ""): row.get("Value", "") for row in rows if isinstance(row.get("Key"), str)})


def _mapping(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = found.get(key)
    return value if isinstance(value, Mapping) else {}


def _text(found: Mapping[str, Any], key: str) -> str:
    value = found.get(key)
    return sanitize.name(value) if isinstance(value, str) else ""


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
