"""What the service refuses before a job exists: botocore's service model, and rules beyond it."""

from __future__ import annotations

from moto.sagemaker.exceptions import AWSValidationException

from sm_profiler.config.api import interval_problem, rule_problems
from sm_profiler.launch.service_model import check_request
from sm_profiler.local.records import JsonDict, TrainingJob

CHECKED = ("CreateTrainingJob", "UpdateTrainingJob", "CreateProcessingJob")


def refuse_invalid(operation: str, request: JsonDict) -> None:
    """Refuse a request that breaks the service model: types, required keys, lengths, patterns, enumerations.

    Raises:
        AWSValidationException: in the service's words.
    """
    if operation not in CHECKED:
        return
    refuse(check_request(operation, request))


def refuse(problems: list[str]) -> None:
    """Raise the service's ValidationException if there is a problem."""
    if problems:
        count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''} detected: "
        raise AWSValidationException(count + "; ".join(problems))


def check_profiler(config: JsonDict | None, rules: list[JsonDict], names: list[str]) -> list[str]:
    """What the service says of a profiler configuration beyond its model."""
    interval = interval_problem((config or {}).get("ProfilingIntervalInMilliseconds"))
    problems = [interval] if interval is not None else []
    return problems + rule_problems((config or {}).get("DisableProfiler"), rules, names)


def check_create_training(request: JsonDict) -> None:
    """Refuse what the service refuses of a new training job.

    Raises:
        AWSValidationException: with all problems found.
    """
    refuse(check_profiler(request.get("ProfilerConfig"), request.get("ProfilerRuleConfigurations", []), []))


def check_update_training(job: TrainingJob, request: JsonDict) -> None:
    """Refuse what cannot be changed.

    Raises:
        AWSValidationException: the job is over, or the new configuration is wrong.
    """
    if job.status != "InProgress":
        raise AWSValidationException(f"Training job {job.name} cannot be updated: its status is {job.status}")
    config = {**(job.profiler_config or {}), **(request.get("ProfilerConfig") or {})}
    rules = request.get("ProfilerRuleConfigurations", [])
    refuse(check_profiler(config, rules, [rule.name for rule in job.rules]))
