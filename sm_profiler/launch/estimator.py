"""Attach to an Estimator of SDK v2."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from sm_profiler.container import AUTO_VARIABLE, CHECKPOINTS
from sm_profiler.debugger import ProfilerConfig, ProfilerRule
from sm_profiler.debugger.sdk_compat import is_kind
from sm_profiler.errors import ConfigError
from sm_profiler.launch.clients import warn_of_tuning
from sm_profiler.launch.environment import agent_environment
from sm_profiler.launch.request import config_request, require_accepted, require_managed_profiling

LOCAL_MODES = ("local", "local_gpu")


def attach_estimator(
    estimator: Any, profiler_config: Any, rules: Sequence[Any], backend: str
) -> tuple[str, list[Callable[[], object]]]:
    """Set an Estimator's attributes as if the configuration had been passed to its constructor.

    Returns:
        A description, and functions that undo it.

    Raises:
        ConfigError: the service would reject the configuration.
    """
    others = [rule for rule in estimator.rules or [] if not is_kind(rule, ProfilerRule)]
    dropped = [rule.name for rule in estimator.rules or [] if is_kind(rule, ProfilerRule)]
    if dropped:
        warnings.warn(f"the Estimator's profiler rules are replaced: {', '.join(map(str, dropped))}", stacklevel=3)
    _require_docker_in_local_mode(estimator, backend)
    before = estimator.profiler_config
    defaults = {"S3OutputPath", "DisableProfiler"}  # the SDK fills these in
    if before is not None and config_request(before).keys() - defaults:
        warnings.warn("the Estimator's profiler_config is replaced", stacklevel=3)
    if backend == "agent":
        values = {
            "environment": agent_environment(
                profiler_config,
                estimator.environment,
                s3_output_path=_output_path(estimator),
                kms_key_id=estimator.output_kms_key,
                network_isolation=bool(estimator.enable_network_isolation()),
                checkpoint_path=(estimator.checkpoint_local_path or CHECKPOINTS)
                if estimator.checkpoint_s3_uri
                else None,
            ),
            "disable_profiler": True,
            "profiler_config": None,
            "rules": others or None,
        }
        description = "the configuration is passed in the environment, and the managed service is switched off"
    else:
        require_managed_profiling(estimator.sagemaker_session.boto_region_name, estimator.instance_type)
        config = profiler_config if profiler_config is not None else ProfilerConfig()
        _check(config, rules)
        environment = dict(estimator.environment or {})
        if getattr(config, "framework_profile_params", None) is not None:
            environment.setdefault(AUTO_VARIABLE, "1")
        values = {
            "environment": environment or None,
            "disable_profiler": config.disable_profiler is True,
            "profiler_config": copy.copy(config),
            "rules": [*others, *(copy.copy(rule) for rule in rules)] or None,
        }
        description = "the configuration is sent with the job's request"
    undo: list[Callable[[], object]] = [_set_attributes(estimator, values)]
    client = getattr(estimator.sagemaker_session, "sagemaker_client", None)
    if backend == "service" and hasattr(client, "meta"):
        undo.append(warn_of_tuning(client))
    return description, undo


def _set_attributes(target: object, values: dict[str, Any]) -> Callable[[], None]:
    """Set attributes and return a function that restores them."""
    before = {name: getattr(target, name) for name in values}

    def restore() -> None:
        for name, value in before.items():
            setattr(target, name, value)

    for name, value in values.items():
        setattr(target, name, value)
    return restore


def _check(config: Any, rules: Sequence[Any]) -> None:
    if not is_kind(config, ProfilerConfig):
        raise ConfigError(f"an Estimator takes a ProfilerConfig, not {type(config).__name__}")
    for rule in rules:
        if not is_kind(rule, ProfilerRule):
            raise ConfigError(f"rules must be ProfilerRule objects, not {type(rule).__name__}")
    request = {
        "ProfilerConfig": config_request(config),
        "ProfilerRuleConfigurations": [rule.to_profiler_rule_config_dict() for rule in rules],
    }
    require_accepted(request)


def _require_docker_in_local_mode(estimator: Any, backend: str) -> None:
    """Refuse the SDK's local mode where it cannot profile.

    Raises:
        ConfigError: Docker is missing, or the managed service would have to profile a container on this machine.
    """
    if estimator.instance_type not in LOCAL_MODES:
        return
    if shutil.which("docker") is None:
        raise ConfigError(
            "local mode of the SDK needs Docker, which is not installed: run the job on 'sm-profiler local'"
        )
    if backend == "service":
        raise ConfigError("local mode of the SDK has no managed service: attach with backend='agent'")


def _output_path(estimator: Any) -> Any:
    """Return the S3 URI of the job's results, as the Estimator chooses it when it starts the job."""
    if estimator.output_path is not None:
        return estimator.output_path
    session = estimator.sagemaker_session
    parts = [session.default_bucket(), getattr(session, "default_bucket_prefix", None)]
    return "s3://" + "/".join(part for part in parts if part) + "/"
