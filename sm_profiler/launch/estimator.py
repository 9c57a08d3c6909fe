"""SDK v2's Estimators."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

from sm_profiler.container import AUTO_VARIABLE, CHECKPOINTS
from sm_profiler.debugger import ProfilerConfig, ProfilerRule
from sm_profiler.debugger.disguise import is_kind
from sm_profiler.errors import ConfigError
from sm_profiler.launch.attachment import Attachment, replace_attributes
from sm_profiler.launch.environment import agent_environment
from sm_profiler.launch.regions import refuse_where_unsupported
from sm_profiler.launch.request import config_request, refuse_what_the_service_refuses


def attach_estimator(estimator: Any, profiler_config: Any, rules: Sequence[Any], backend: str) -> Attachment:
    """Attach to an Estimator of SDK v2: its own arguments are set, as if they had been passed to it.

    Raises:
        ConfigError: the service would refuse it.
    """
    others = [rule for rule in estimator.rules or [] if not is_kind(rule, ProfilerRule)]
    dropped = [rule.name for rule in estimator.rules or [] if is_kind(rule, ProfilerRule)]
    if dropped:
        warnings.warn(f"the Estimator's profiler rules are replaced: {', '.join(map(str, dropped))}", stacklevel=3)
    before = estimator.profiler_config
    if before is not None and config_request(before).keys() - {
        "S3OutputPath",
        "DisableProfiler",
    }:  # a bare one is the SDK's
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
        says = "the configuration travels in the environment; the service is told not to profile"
    else:
        refuse_where_unsupported(estimator.sagemaker_session.boto_region_name, estimator.instance_type)
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
        says = "the configuration is sent with the job's request"
    return Attachment(says, [replace_attributes(estimator, values)])


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
    refuse_what_the_service_refuses(request)


def _output_path(estimator: Any) -> Any:
    """Where the job's results go, decided as the Estimator decides it when it starts the job."""
    if estimator.output_path is not None:
        return estimator.output_path
    session = estimator.sagemaker_session
    parts = [session.default_bucket(), getattr(session, "default_bucket_prefix", None)]
    return "s3://" + "/".join(part for part in parts if part) + "/"
