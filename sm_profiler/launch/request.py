"""A configuration as keyword arguments of `create_training_job` and `update_training_job`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from sm_profiler.config.profile import API_INTERVALS_MS
from sm_profiler.debugger import ProfilerConfig
from sm_profiler.errors import ConfigError
from sm_profiler.launch.regions import refuse_where_unsupported
from sm_profiler.launch.rule_requests import rule_request
from sm_profiler.launch.service_model import check_request

MAX_RULES = 20
_KEYS = ("ProfilerConfig", "ProfilerRuleConfigurations")


def to_request(
    profiler_config: Any = None,
    rules: Sequence[Any] | None = None,
    *,
    region: str | None = None,
    session: Any = None,
    s3_output_path: str | None = None,
) -> dict[str, Any]:
    """Keyword arguments for boto3: `create_training_job(…, **to_request(…))`, and `update_training_job`.

    Nothing that is passed in is changed.

    Args:
        profiler_config: a ProfilerConfig of ours or of the SDK's, or the API's object; None means system metrics only.
        rules: ProfilerRule objects.
        region: where the job runs; taken from the session or the environment where it is not given.
        session: boto3 session, or an SDK session, for the region and for uploading a local rule source.
        s3_output_path: where the profile is stored, if the configuration does not say it.

    Returns:
        `ProfilerConfig`, and `ProfilerRuleConfigurations` where there are rules.

    Raises:
        ConfigError: the service would refuse it; one line says why.
    """
    session = getattr(session, "boto_session", session)
    region = (
        region
        or getattr(session, "region_name", None)
        or os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
    )
    config = config_request(profiler_config, s3_output_path)
    if not config.get("DisableProfiler"):
        refuse_where_unsupported(region)
    where = config.get("S3OutputPath", s3_output_path)
    request: dict[str, Any] = {"ProfilerConfig": config}
    if rules:
        request["ProfilerRuleConfigurations"] = [rule_request(rule, region, session, where) for rule in rules]
    refuse_what_the_service_refuses(request)
    return request


def config_request(profiler_config: Any, s3_output_path: Any = None) -> dict[str, Any]:
    """The API's `ProfilerConfig`, with the given path where the configuration has none.

    Raises:
        ConfigError: it is no profiler configuration.
    """
    if profiler_config is None:
        profiler_config = ProfilerConfig()
    if isinstance(profiler_config, Mapping):
        request = dict(profiler_config)
    else:
        try:
            request = dict(profiler_config._to_request_dict())  # noqa: SLF001 - the SDK's own objects are asked so
        except AttributeError:
            kind = type(profiler_config).__name__
            raise ConfigError(f"profiler_config must be a ProfilerConfig, not {kind}") from None
    if "ProfilingParameters" in request:
        request["ProfilingParameters"] = dict(request["ProfilingParameters"])
    if s3_output_path is not None and "S3OutputPath" not in request and request.get("DisableProfiler") is not True:
        request = {"S3OutputPath": s3_output_path, **request}
    return request


def refuse_what_the_service_refuses(request: Mapping[str, Any], operation: str = "CreateTrainingJob") -> None:
    """Check the profiler's part of a request.

    Raises:
        ConfigError: with all that is wrong, in one line.
    """
    problems = problems_of(request)
    problems += check_request(operation, request, only=_KEYS)
    if problems:
        raise ConfigError("the service would refuse this: " + "; ".join(problems))


def problems_of(request: Mapping[str, Any]) -> list[str]:
    """What the service refuses beyond its model: intervals, rules of a disabled profiler, names used twice."""
    config = request.get("ProfilerConfig") or {}
    rules = request.get("ProfilerRuleConfigurations") or []
    problems = []
    interval = config.get("ProfilingIntervalInMilliseconds")
    if isinstance(interval, int) and interval not in API_INTERVALS_MS:
        allowed = ", ".join(map(str, API_INTERVALS_MS))
        problems.append(f"ProfilingIntervalInMilliseconds: {interval} is not one of {allowed}")
    if rules and config.get("DisableProfiler") is True:
        problems.append("profiler rules cannot be used while DisableProfiler is true")
    names = [rule.get("RuleConfigurationName") for rule in rules if isinstance(rule, Mapping)]
    twice = sorted({name for name in names if isinstance(name, str) and names.count(name) > 1})
    problems += [f"two rules are named {name}: give one of them another name=" for name in twice]
    return problems
