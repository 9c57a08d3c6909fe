"""Requests that the service refuses: botocore's service model, and constraints beyond it."""

from __future__ import annotations

from moto.sagemaker.exceptions import AWSValidationException

from sm_profiler.config.api import interval_problem, rule_problems
from sm_profiler.launch.service_model import check_request
from sm_profiler.local.metrics import expression_problem
from sm_profiler.local.records import JsonDict, TrainingJobRecord

CHECKED = (
    *(f"{verb}TrainingJob" for verb in ("Create", "Describe", "Update", "Stop")),
    *(f"{verb}ProcessingJob" for verb in ("Create", "Describe", "Stop")),
    *("ListTrainingJobs", "ListProcessingJobs", "Search", "AddTags", "ListTags"),
)
NEEDED = ("AlgorithmSpecification", "ResourceConfig", "OutputDataConfig")


def refuse_invalid(operation: str, request: JsonDict) -> None:
    """Refuse a request that violates the service model: types, required keys, lengths, patterns, enumerations.

    Raises:
        AWSValidationException: with all problems, phrased as the service does.
    """
    if operation not in CHECKED:
        return
    refuse(check_request(operation, request))


def refuse(problems: list[str]) -> None:
    """Raise the service's ValidationException if there are problems."""
    if problems:
        count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''} detected: "
        raise AWSValidationException(count + "; ".join(problems))


def check_profiler(config: JsonDict | None, rules: list[JsonDict], names: list[str]) -> list[str]:
    """Return the problems of a profiler configuration beyond the service model."""
    interval = interval_problem((config or {}).get("ProfilingIntervalInMilliseconds"))
    problems = [interval] if interval is not None else []
    return problems + rule_problems((config or {}).get("DisableProfiler"), rules, names)


def check_create_training(request: JsonDict) -> None:
    """Refuse an invalid new training job.

    Raises:
        AWSValidationException: with all problems.
    """
    problems = [f"{name}: required by the local endpoint" for name in NEEDED if name not in request]
    problems += check_profiler(request.get("ProfilerConfig"), request.get("ProfilerRuleConfigurations", []), [])
    for number, channel in enumerate(request.get("InputDataConfig", [])):
        if channel["ChannelName"] in (".", ".."):  # the service model's pattern allows both
            problems.append(f"InputDataConfig[{number}].ChannelName: {channel['ChannelName']!r} is not a folder name")
    for number, metric in enumerate(request.get("AlgorithmSpecification", {}).get("MetricDefinitions", [])):
        if problem := expression_problem(metric["Regex"]):
            problems.append(f"AlgorithmSpecification.MetricDefinitions[{number}].Regex: {problem}")
    refuse(problems)


def check_update_training(job: TrainingJobRecord, request: JsonDict) -> None:
    """Refuse an invalid update.

    Raises:
        AWSValidationException: the job has ended, or the new configuration is invalid.
    """
    if job.status != "InProgress":
        raise AWSValidationException(f"Training job {job.name} cannot be updated: its status is {job.status}")
    config = {**(job.profiler_config or {}), **(request.get("ProfilerConfig") or {})}
    rules = request.get("ProfilerRuleConfigurations", [])
    refuse(check_profiler(config, rules, [rule.name for rule in job.rules]))
