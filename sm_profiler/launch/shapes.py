"""Convert a configuration to SDK v3's shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from sm_profiler.errors import ConfigError
from sm_profiler.launch.request import build_request, warn_of_missing_path

TESTED = "3.27.0"


def to_shapes(
    profiler_config: Any = None,
    rules: Sequence[Any] | None = None,
    *,
    region: str | None = None,
    session: Any = None,
    s3_output_path: str | None = None,
) -> dict[str, Any]:
    """Return keyword arguments for SDK v3's `TrainingJob.create(…, **to_shapes(…))` and `TrainingJob.update`.

    Args:
        profiler_config: a ProfilerConfig of this package or of the SDK, or the API's object; None records system metrics
            only.
        rules: ProfilerRule objects.
        region: region of the job; taken from the session or the environment by default.
        session: boto3 or SDK session, for the region and for uploading a local rule source.
        s3_output_path: S3 URI that the profile is stored under if the configuration has none.

    Raises:
        ConfigError: the service would reject the request, or SDK v3 is not installed or incompatible.
    """
    request = build_request(profiler_config, rules, region=region, session=session, s3_output_path=s3_output_path)
    warn_of_missing_path(request)
    return request_to_shapes(request)


def request_to_shapes(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the profiler's part of a request as `profiler_config` and `profiler_rule_configurations`.

    Raises:
        ConfigError: SDK v3 is not installed or incompatible.
    """
    try:
        shapes = import_module("sagemaker.core.shapes")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "sagemaker":
            raise
        raise ConfigError(
            "shapes need the SageMaker SDK v3, which is not installed: pip install 'sagemaker>=3.27'"
        ) from None
    config = request["ProfilerConfig"]
    try:
        # one object that both create (ProfilerConfig) and update (ProfilerConfigForUpdate) accept
        kind = type("ProfilerConfig", (shapes.ProfilerConfig, shapes.ProfilerConfigForUpdate), {"__module__": __name__})
        converted: dict[str, Any] = {"profiler_config": kind(**_snake(config, _CONFIG))}
        rules = request.get("ProfilerRuleConfigurations")
        if rules:
            converted["profiler_rule_configurations"] = [
                shapes.ProfilerRuleConfiguration(**_snake(rule, _RULE)) for rule in rules
            ]
    except (AttributeError, TypeError, ValueError) as error:
        line = " ".join(str(error).split())
        raise ConfigError(
            f"the shapes of SDK {sdk_version()} differ from those of {TESTED}, the tested version: {line}"
        ) from error
    return converted


def sdk_version() -> str:
    """Return the installed SDK's version, for messages."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - needed only for a message

    try:
        return version("sagemaker")
    except PackageNotFoundError:
        return "(unknown)"


_CONFIG = {
    "S3OutputPath": "s3_output_path",
    "DisableProfiler": "disable_profiler",
    "ProfilingIntervalInMilliseconds": "profiling_interval_in_milliseconds",
    "ProfilingParameters": "profiling_parameters",
}
_RULE = {
    "RuleConfigurationName": "rule_configuration_name",
    "RuleEvaluatorImage": "rule_evaluator_image",
    "InstanceType": "instance_type",
    "VolumeSizeInGB": "volume_size_in_gb",
    "LocalPath": "local_path",
    "S3OutputPath": "s3_output_path",
    "RuleParameters": "rule_parameters",
}


def _snake(request: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names[key]: value for key, value in request.items()}
