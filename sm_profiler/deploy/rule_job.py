"""Start the rule container on a training job of SageMaker, finished or running."""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from sm_profiler.container import JOB_NAME_VARIABLE, RULE_OUTPUT
from sm_profiler.deploy.image import one_line_errors
from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.launch.request import check_class, check_request, local_source, source_uri, upload_source
from sm_profiler.rules import RULES
from sm_profiler.rules.settings import DEFAULT_RULE
from sm_profiler.settings import KMS_KEY, SOURCE
from sm_profiler.source.job import Launched, describe, missing_profile, outputs_of, stored_profile
from sm_profiler.source.opening import given, is_account, split_account
from sm_profiler.storage import AccessDeniedError
from sm_profiler.storage.s3_client import create_api_client, create_client

POLL_S = 10.0
MAX_VALUE = 256  # characters of an environment variable that CreateProcessingJob accepts
MAX_NAME = 63  # characters of a processing job's name
MAX_INSTANCES = 100
DEFAULT_TYPE, DEFAULT_TYPE_OF_SEVERAL = "ml.t3.medium", "ml.m5.xlarge"
RUNNING = ("InProgress", "Stopping")
_FORCE = "Nothing was started; `rules start --force`, or start_rules(force=True), starts the rules all the same."


@attrs.frozen
class StartedRules:
    """A processing job that evaluates rules.

    Attributes:
        name: name of the processing job.
        report_uri: s3:// URI that the report is written to.
        request: arguments of CreateProcessingJob.
    """

    name: str
    report_uri: str
    request: dict[str, Any]


def start_rules(  # keyword arguments, each an independent choice
    job: str,
    *,
    image: str,
    role: str | None,
    rule: str = DEFAULT_RULE,
    source: str | None = None,
    parameters: Mapping[str, object] | None = None,
    instance_type: str | None = None,
    instances: int = 1,
    volume_size_in_gb: int = 30,
    max_hours: float = 24,
    region: str | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> StartedRules:
    """Evaluate a training job's profile in a processing job of SageMaker; a running job is followed to its end.

    Several instances share the work once the training job is over, with the same result.

    Args:
        job: name or ARN of the training job, or account:REGION/NAME.
        image: URI of the rule image, as `deploy_image` returns it.
        role: ARN of the role that the container runs under, with few permissions (docs/deploying.md); None reuses the
            training job's role, which usually can do far more than read a profile.
        rule: the rule whose condition decides the status: `ProfilerReport` for all, or that rule's name.
        source: file with a custom rule, whose class `rule` names: an s3:// URI, or a local file, which is uploaded next to
            the profile.
        parameters: parameters of the rules; values become strings.
        instance_type: instance of the processing job; default: ml.t3.medium, or ml.m5.xlarge if there are several.
        instances: number of instances.
        volume_size_in_gb: its volume.
        max_hours: limit on its run time.
        region: AWS region; the session's own by default.
        force: start it without looking for a profile, for a job whose profiler will be switched on while it runs.
        dry_run: build the request and send nothing.

    Raises:
        ConfigError: a value that the container or the service would refuse.
        SourceError: there is no such training job, or it has no profile.
        ProfilerError: the processing job was refused.
    """
    if not source:
        rule = check_rule(rule)
    if not 0 < max_hours < math.inf:
        raise ConfigError(f"max_hours {max_hours}: must be a positive number")
    if not 1 <= instances <= MAX_INSTANCES:
        raise ConfigError(f"{instances} instances: must be from 1 to {MAX_INSTANCES}")
    local = _local_file(source, rule) if source and not source.startswith("s3://") else None
    if role and not role.startswith("arn:"):
        raise ConfigError(
            f"role {role!r} is not an ARN, such as arn:aws:iam::123456789012:role/{role}: aws iam get-role --role-name {role} "
            "prints it"
        )
    if is_account(named := given(job)):  # or its ARN
        of_job, job = split_account(named)
        region = region or of_job
    client: Any = create_api_client("sagemaker", region=region)
    training = describe(job, client=client)
    data = _profile_of(training, job, region=region, force=force)
    if local is not None:
        source = source_uri(f"{data.rpartition('/')[0]}/rule-source", rule, local)
    environment = {
        **{str(key): str(value) for key, value in (parameters or {}).items()},
        "rule_to_invoke": rule,
        "rule_follow": str(training.get("TrainingJobStatus") in RUNNING).lower(),
        SOURCE.name: data,
        JOB_NAME_VARIABLE: training["TrainingJobName"],
        **({"source_s3_uri": source} if source else {}),
    }
    too_long = [key for key, value in environment.items() if len(value) > MAX_VALUE]
    if too_long:
        raise ConfigError(f"{too_long[0]} is longer than the {MAX_VALUE} characters that a processing job accepts")
    suffix = f"-rules-{time.strftime('%Y%m%d%H%M%S')}"
    name = job[: MAX_NAME - len(suffix)].rstrip("-") + suffix
    target = f"{data.rpartition('/')[0]}/rule-output/{rule}"
    output = {"S3Uri": target, "LocalPath": RULE_OUTPUT, "S3UploadMode": "Continuous"}
    kind = instance_type or (DEFAULT_TYPE if instances == 1 else DEFAULT_TYPE_OF_SEVERAL)
    cluster = {"InstanceCount": instances, "InstanceType": kind, "VolumeSizeInGB": volume_size_in_gb}
    request = {
        "ProcessingJobName": name,
        "RoleArn": role or training["RoleArn"],
        "AppSpecification": {"ImageUri": image},
        "Environment": environment,
        "ProcessingOutputConfig": {"Outputs": [{"OutputName": "rule", "S3Output": output}], **_key_of(training)},
        "ProcessingResources": {"ClusterConfig": cluster},
        "StoppingCondition": {"MaxRuntimeInSeconds": int(max_hours * 3600)},
        **({"NetworkConfig": {"VpcConfig": training["VpcConfig"]}} if training.get("VpcConfig") else {}),
    }
    if problems := check_request("CreateProcessingJob", request):
        raise ConfigError("; ".join(problems))
    if not dry_run:
        if local is not None and source is not None:
            upload_source(local, source, rule, create_client("s3", region_name=region))
        with one_line_errors("the processing job was refused"):
            client.create_processing_job(**request)
    return StartedRules(name, f"{target}/profiler-output/profiler-report.html", request)


def _profile_of(training: dict[str, Any], job: str, *, region: str | None, force: bool) -> str:
    """Return the URI of a job's profile, or where it will be; without a profile, a processing job would be paid for nothing.

    Raises:
        SourceError: there is none, with the reason and what to do.
    """
    places = outputs_of(training, job)
    if force:
        return places[0]
    try:
        found = stored_profile(places, client=create_client("s3", region_name=region))
    except AccessDeniedError:  # the container has another role
        return places[0]
    except SourceError as error:
        text = missing_profile(training, job, places, region=region or "", problem=error)
        raise SourceError(f"{text} {_FORCE}") from error
    if found is None and not Launched.of(training).may_store_profile:
        raise SourceError(f"{missing_profile(training, job, places, region=region or '')} {_FORCE}")
    return found or places[0]


def _key_of(training: Any) -> dict[str, str]:
    """Return the key that encrypts the report: SM_PROFILER_KMS_KEY, or else that of the training job's results."""
    key = KMS_KEY.read() or training.get("OutputDataConfig", {}).get("KmsKeyId")
    return {"KmsKeyId": key} if key else {}


def wait_for_end(
    name: str, *, region: str | None = None, poll_s: float = POLL_S, waiting: Callable[[str], object] = bool
) -> tuple[str, str]:
    """Wait until a processing job has ended; return its status, and its message or the reason of its failure.

    Args:
        name: the processing job.
        region: AWS region; the session's own by default.
        poll_s: seconds between two calls.
        waiting: called with the status after each call.

    Raises:
        ProfilerError: the job cannot be described.
    """
    client: Any = create_api_client("sagemaker", region=region)
    while True:
        with one_line_errors("the processing job cannot be described"):
            found = client.describe_processing_job(ProcessingJobName=name)
        status = str(found["ProcessingJobStatus"])
        if status not in RUNNING:
            return status, str(found.get("ExitMessage") or found.get("FailureReason") or "")
        waiting(status)
        time.sleep(poll_s)


def _local_file(source: str, rule: str) -> Path:
    path = local_source(source, rule)
    check_class(path, rule)
    return path


def check_rule(name: str) -> str:
    """Return the exact name of a built-in rule.

    Raises:
        ConfigError: there is no such rule; suggests the nearest name.
    """
    names = {known.lower(): known for known in (DEFAULT_RULE, *(rule.name() for rule in RULES))}
    if name.lower() in names:
        return names[name.lower()]
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {names[near[0]]}?" if near else f"built-in rules: {', '.join(names.values())}"
    raise ConfigError(f"no rule {name}; {hint} (a custom rule needs --source)")
