"""Convert a configuration to keyword arguments of `create_training_job` and `update_training_job`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from sm_profiler.config.api import UNSUPPORTED_REGIONS, interval_problem, rule_problems
from sm_profiler.debugger import ProfilerConfig
from sm_profiler.errors import ConfigError
from sm_profiler.launch.rule_requests import rule_request
from sm_profiler.launch.service_model import check_request
from sm_profiler.printable import printable

_KEYS = ("ProfilerConfig", "ProfilerRuleConfigurations")
_PARTS = {
    "FrameworkProfile": ": ProfilerConfig(framework_profile_params=…)",
    "Profiler": ": ProfilerConfig(profile_params=…)",
}


def to_request(
    profiler_config: Any = None,
    rules: Sequence[Any] | None = None,
    *,
    region: str | None = None,
    session: Any = None,
    s3_output_path: str | None = None,
) -> dict[str, Any]:
    """Return keyword arguments for boto3's `create_training_job(…, **to_request(…))` and `update_training_job`.

    The arguments are not changed.

    Args:
        profiler_config: a ProfilerConfig of this package or of the SDK, or the API's object; None records system metrics
            only.
        rules: ProfilerRule objects.
        region: region of the job; taken from the session or the environment by default.
        session: boto3 or SDK session, for the region and for uploading a local rule source.
        s3_output_path: S3 URI that the profile is stored under if the configuration has none.

    Returns:
        `ProfilerConfig`, and, if there are rules, `ProfilerRuleConfigurations`. A warning is issued if they have no S3 path,
        which only the request of an update can do without.

    Raises:
        ConfigError: the service would reject the request; the message lists all reasons in one line.
    """
    request = build_request(profiler_config, rules, region=region, session=session, s3_output_path=s3_output_path)
    warn_of_missing_path(request)
    return request


def build_request(
    profiler_config: Any,
    rules: Sequence[Any] | None,
    *,
    region: str | None = None,
    session: Any = None,
    s3_output_path: str | None = None,
) -> dict[str, Any]:
    """Return the arguments of `to_request`, which may lack an S3 path.

    Raises:
        ConfigError: the service would reject the request.
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
        require_managed_profiling(region)
    output = config.get("S3OutputPath", s3_output_path)
    request: dict[str, Any] = {"ProfilerConfig": config}
    if rules := checked_rules(rules):
        request["ProfilerRuleConfigurations"] = [rule_request(rule, region, session, output) for rule in rules]
    require_accepted(request)
    return request


def warn_of_missing_path(request: Mapping[str, Any]) -> None:
    """Warn of a request whose profile has no place; to be called by a function that users call."""
    config = request["ProfilerConfig"]
    if config.get("DisableProfiler") is not True and config.get("S3OutputPath") is None:
        warnings.warn(
            "the request has no S3 path for the profile: pass s3_output_path=, usually that of the job's results, or set it "
            "in the ProfilerConfig (only an update of a running job needs none)",
            stacklevel=3,
        )


def config_request(profiler_config: Any, s3_output_path: Any = None) -> dict[str, Any]:
    """Return the API's `ProfilerConfig`, with the given path if the configuration has none.

    Raises:
        ConfigError: the argument is not a profiler configuration.
    """
    if profiler_config is None:
        profiler_config = ProfilerConfig()
    if isinstance(profiler_config, Mapping):
        request = dict(profiler_config)
    else:
        try:
            request = dict(profiler_config._to_request_dict())  # noqa: SLF001 - the SDK's objects have no public method
        except AttributeError:
            kind = type(profiler_config).__name__
            hint = _PARTS.get(kind, "")
            raise ConfigError(f"profiler_config must be a ProfilerConfig, not {kind}{hint}") from None
    if isinstance(request.get("ProfilingParameters"), Mapping):
        request["ProfilingParameters"] = dict(request["ProfilingParameters"])
    if s3_output_path is not None and "S3OutputPath" not in request and request.get("DisableProfiler") is not True:
        request = {"S3OutputPath": s3_output_path, **request}
    return request


def checked_rules(rules: object) -> Sequence[Any]:
    """Return rules as a sequence.

    Raises:
        ConfigError: they are something else than a list of ProfilerRule objects.
    """
    if hasattr(rules, "to_profiler_rule_config_dict"):
        raise ConfigError("rules must be a list of ProfilerRule objects, not one ProfilerRule: rules=[rule]")
    if rules is None:
        return ()
    if not isinstance(rules, (list, tuple)):
        raise ConfigError(f"rules must be a list of ProfilerRule objects, not {type(rules).__name__}")
    for rule in rules:
        if not hasattr(rule, "to_profiler_rule_config_dict"):
            raise ConfigError(f"rules must be ProfilerRule objects, not {type(rule).__name__}")
    return rules


def require_managed_profiling(region: object, instance_type: object = None) -> None:
    """Check that the managed service can profile in a region and on an instance type.

    Raises:
        ConfigError: it cannot.
    """
    if isinstance(region, str) and region.lower() in UNSUPPORTED_REGIONS:
        raise ConfigError(f"SageMaker has no managed profiling in {region}: use attach(…, backend='agent')")
    if isinstance(instance_type, str) and instance_type.startswith(("ml.trn", "ml_trn")):
        raise ConfigError(f"SageMaker has no managed profiling on {instance_type}: use attach(…, backend='agent')")


def require_accepted(request: Mapping[str, Any]) -> None:
    """Check the profiler's part of a request against the API's model and its further constraints.

    Raises:
        ConfigError: the service would reject it; the message lists all reasons in one line.
    """
    config = request.get("ProfilerConfig") or {}
    interval = interval_problem(config.get("ProfilingIntervalInMilliseconds"))
    problems = [interval] if interval is not None else []
    problems += rule_problems(config.get("DisableProfiler"), request.get("ProfilerRuleConfigurations") or [])
    problems += check_request("CreateTrainingJob", request, only=_KEYS)
    if problems:
        raise ConfigError(printable("the service would reject this: " + "; ".join(problems)))
