"""Location of the profiler output of a SageMaker training job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sm_profiler.config.launched import Launched
from sm_profiler.container import CHECKPOINTS, ISOLATED_FOLDER, OUTPUT_DATA
from sm_profiler.errors import SourceError
from sm_profiler.formats.layout import FRAMEWORK, OUTPUT, SYSTEM
from sm_profiler.settings import AUTO
from sm_profiler.storage import open_storage
from sm_profiler.storage.base import AccessDeniedError

try:
    from botocore.exceptions import ClientError

    from sm_profiler.storage.s3 import REQUEST_ERRORS, create_api_client, error_codes, reason_of, unknown_region
except (ImportError, SourceError) as missing:  # pragma: no cover - only imported for the name of a training job
    raise SourceError("opening a training job by its name needs boto3: pip install 'sm-profiler[aws]'") from missing


_NO_BUCKET = (
    "start the job again with an S3 path of a bucket that exists; what this one recorded is lost with its container"
)
_MAY_BE_MISSING = ("ValidationException", "ResourceNotFound", "ResourceNotFoundException")
_MISSING = re.compile(r"not f(ou|i)nd")
LOG_PAGES, LOG_LINES = 5, 20  # of a job's log, searched for our lines


def describe(name: str, *, region: str | None = None, client: Any = None) -> dict[str, Any]:
    """Return the response of DescribeTrainingJob.

    Raises:
        SourceError: there is no such job, or the request fails.
    """
    try:
        client = client or create_api_client("sagemaker", region=region)
        answer: dict[str, Any] = client.describe_training_job(TrainingJobName=name)
    except ClientError as error:
        raise SourceError(refused(error, name, _region_of(client, region), named=region is not None)) from error
    except (*REQUEST_ERRORS, SourceError) as error:
        # A mistyped folder name gets here too, possibly on a machine without a network.
        cause = error.__cause__ if isinstance(error, SourceError) else error
        raise SourceError(
            f"{name} is not a folder, and its training job cannot be looked up: {reason_of(error, _region_of(client, region))}"
        ) from cause
    return answer


def refused(error: ClientError, name: str, region: str, *, named: bool = False) -> str:
    """Return why a training job could not be described, with what to do if there is none of that name.

    Args:
        named: the region was named in the call.
    """
    reason = reason_of(error, region)
    if error_codes(error)[0] not in _MAY_BE_MISSING or not _MISSING.search(reason) or unknown_region(region):
        return f"training job {name}: {reason}"
    other = "name that region" if named else f"set AWS_REGION, or write account:REGION/{name}"
    return (
        f"training job {name} does not exist in {region} ({reason.rstrip('.')}). To do: check the name; for a job of "
        f"another region, {other}"
    )


def _region_of(client: Any, region: str | None) -> str:
    return str(getattr(getattr(client, "meta", None), "region_name", None) or region or "")


def profiler_output(name: str, *, client: Any = None) -> str:
    """Return the s3:// URI of a training job's `profiler-output`.

    Raises:
        SourceError: there is no such job, or it is not profiled.
    """
    return output_of(describe(name, client=client), name)


def output_of(job: dict[str, Any], name: str) -> str:
    """Return the s3:// URI of the `profiler-output` of a described training job.

    Raises:
        SourceError: it has none.
    """
    return outputs_of(job, name)[0]


def outputs_of(job: dict[str, Any], name: str) -> list[str]:
    """Return the s3:// URIs where the `profiler-output` of a described training job may be, the likeliest first.

    They are the path of the configuration that applies (of the agent in the job's environment, or of the service), and the
    default, next to the job's model.

    Raises:
        SourceError: there is none.
    """
    configured = (job.get("ProfilerConfig") or {}).get("S3OutputPath")
    launched = Launched.of(job)
    if not configured and launched.isolated and AUTO.name in (job.get("Environment") or {}):
        if stored := _stored_output(job, launched, name):
            return [stored]
        if launched.s3_output_path is None:
            why, advice = launched.lost_in_isolation
            raise SourceError(f"training job {name} has no profile: {why}. To do: {advice}.")
    paths = [launched.s3_output_path, configured, (job.get("OutputDataConfig") or {}).get("S3OutputPath")]
    found = dict.fromkeys(path.rstrip("/") for path in paths if path)
    if not found:
        raise SourceError(f"training job {name} has no profiler output")
    return [f"{path}/{job.get('TrainingJobName', name)}/{OUTPUT}" for path in found]


def outputs_below(places: Sequence[str]) -> list[str]:
    """Return the URIs to look for a profile at, of the places that `outputs_of` returns."""
    return [uri for place in places for uri in ((place,) if place.endswith(OUTPUT) else (place, f"{place}/{OUTPUT}"))]


def stored_profile(places: Sequence[str], *, client: Any = None) -> str | None:
    """Return the URI of the profile at one of the places; None if there is none.

    Args:
        places: of `outputs_of`.
        client: a boto3 client of S3; default: one created from the environment.

    Raises:
        AccessDeniedError: these credentials may not list the objects.
        SourceError: they cannot be listed, for example because there is no such bucket.
    """
    problem = None
    for uri in outputs_below(places):
        storage = open_storage(uri, client=client)
        try:
            if any(next(iter(storage.list(f"{part}/")), None) is not None for part in (SYSTEM, FRAMEWORK)):
                return uri
        except SourceError as error:  # the profile may be in another place
            problem = problem or error
    if problem is not None:
        raise problem
    return None


def missing_profile(
    job: dict[str, Any],
    name: str,
    looked: Sequence[str],
    *,
    region: str = "",
    client: Any = None,
    problem: SourceError | None = None,
) -> str:
    """Return the message for a described job without a profile: the reason, the searched places, and what to do."""
    launched = Launched.of(job)
    if problem is not None:
        text = f"the profile of training job {name} cannot be read: {problem}"
        if isinstance(problem, AccessDeniedError):
            return f"{text}. To do: use credentials that may read it."
        return f"{text}. To do: {_NO_BUCKET}." if error_codes(problem.__cause__)[0] == "NoSuchBucket" else text
    log = own_log_lines(name, region=region, client=client) if launched.started and not launched.running else []
    why, advice = launched.why_no_profile(log)
    text = f"training job {name} has no profile: {why}. Looked in {' and '.join(looked)}."
    return f"{text} To do: {advice}." if advice else text


def own_log_lines(name: str, *, region: str = "", client: Any = None) -> list[str]:
    """Return the first lines of sm-profiler in a training job's log; none if it cannot be read."""
    prefix = f"{name}/"
    request = {
        "logGroupName": "/aws/sagemaker/TrainingJobs",
        "logStreamNamePrefix": prefix,
        "filterPattern": '"sm-profiler:"',
    }
    found: list[str] = []
    try:
        client = client or create_api_client("logs", region=region or None)
        for _ in range(LOG_PAGES):
            page = client.filter_log_events(**request)
            # some servers that speak this API ignore the prefix
            events = [
                event for event in page.get("events", ()) if str(event.get("logStreamName", prefix)).startswith(prefix)
            ]
            found += [str(event.get("message", "")) for event in events]
            if len(found) >= LOG_LINES or not page.get("nextToken"):
                break
            request["nextToken"] = page["nextToken"]
    except (*REQUEST_ERRORS, SourceError):  # these credentials may not read logs
        return found
    return [line for line in found if "sm-profiler:" in line][:LOG_LINES]


def _stored_output(job: dict[str, Any], launched: Launched, name: str) -> str | None:
    """Return where the service stores the files of the agent in a job without a network; None if it stores none of them.

    Raises:
        SourceError: in an archive.
    """
    written = launched.agent.local_path if launched.agent is not None else None
    checkpoints = job.get("CheckpointConfig") or {}
    folder = _below(checkpoints.get("LocalPath") or CHECKPOINTS, written)
    if folder and checkpoints.get("S3Uri"):
        return f"{checkpoints['S3Uri'].rstrip('/')}/{folder}"
    if not (folder := _below(OUTPUT_DATA, written)):
        return None
    results = (job.get("OutputDataConfig") or {}).get("S3OutputPath", "").rstrip("/")
    raise SourceError(
        f"training job {name} has no network: its profile is the folder {folder} in {results}/{name}/output/output.tar.gz; "
        "download and unpack it, and name the folder"
    )


def _below(folder: str, path: str | None) -> str:
    """Return a path relative to a folder, "" if it is not in it; of one that is not known, the one that `attach` sets."""
    start = f"{folder.rstrip('/')}/"
    if path is None:
        return ISOLATED_FOLDER
    return path.removeprefix(start).strip("/") if path.startswith(start) else ""
