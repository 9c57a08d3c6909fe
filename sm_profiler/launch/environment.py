"""`backend="agent"`: the configuration travels in the container's environment; nothing is asked of the managed service."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from typing import Any

from sm_profiler.config.environment import MAX_VALUE, MAX_VARIABLES, environment_for
from sm_profiler.container import AUTO_VARIABLE, CONFIG_VARIABLE, OUTPUT_DATA
from sm_profiler.errors import ConfigError
from sm_profiler.launch.request import config_request
from sm_profiler.launch.service_model import is_pipeline_variable

MAX_VARIABLES_TUNING = 48  # the API's limit for a tuning job's trials
_OURS = re.compile(rf"({CONFIG_VARIABLE}(_\d+)?|{AUTO_VARIABLE})\Z")


def agent_environment(  # noqa: PLR0913 - what a job decides, each named
    profiler_config: Any,
    environment: Mapping[str, Any] | None = None,
    *,
    s3_output_path: Any = None,
    kms_key_id: Any = None,
    network_isolation: bool = False,
    checkpoint_path: str | None = None,
    most: int = MAX_VARIABLES,
) -> dict[str, Any]:
    """A job's environment with the profiler's variables in it; the one given is not changed.

    Args:
        profiler_config: a ProfilerConfig of ours or of the SDK's, or the API's object; None means system metrics only.
        environment: the job's own variables.
        s3_output_path: where the profile is stored, if the configuration does not say it.
        kms_key_id: the key that uploads are encrypted with.
        network_isolation: nothing can be uploaded from the container; the files go where the service stores them.
        checkpoint_path: the container's folder that the service syncs, where the job has a CheckpointConfig.
        most: the API's limit for the number of variables.

    Raises:
        ConfigError: it does not fit into the environment, or it holds a pipeline variable.
    """
    config = config_request(profiler_config, None if network_isolation else s3_output_path)
    own = dict(environment or {})
    if config.get("DisableProfiler") is True:
        return own
    if network_isolation:
        config = isolated(config, checkpoint_path)
    elif kms_key_id is not None:
        config["KmsKeyId"] = kms_key_id
    carried = {**environment_for(_text(config)), AUTO_VARIABLE: "1"}
    changed = sorted(name for name, value in own.items() if _OURS.match(name) and carried.get(name) != value)
    if changed:
        warnings.warn(
            f"the job's environment had {', '.join(changed)}: replaced by the attached configuration", stacklevel=3
        )
    merged = {name: value for name, value in own.items() if name not in changed} | carried
    if len(merged) > most:
        raise ConfigError(
            f"the job's environment has {len(own)} variables and the profiler needs {len(carried)}: the API accepts {most}"
        )
    return merged


def isolated(config: Mapping[str, Any], checkpoint_path: str | None) -> dict[str, Any]:
    """A configuration for a container without network: files go where the service itself stores them.

    With a CheckpointConfig that is its folder, synced while the job runs, else the job's output, stored when it ends.
    """
    moved = {key: value for key, value in config.items() if key != "S3OutputPath"}
    if moved.get("ProfilingParameters"):
        folder = f"{(checkpoint_path or OUTPUT_DATA).rstrip('/')}/sm-profiler"
        moved["ProfilingParameters"] = {**moved["ProfilingParameters"], "LocalPath": folder}
    return moved


def _text(config: Mapping[str, Any]) -> str:
    try:
        # not every character is one in the API's count, so what is not ASCII is escaped
        return json.dumps(config, separators=(",", ":"))
    except TypeError:
        names = [key for key, value in config.items() if is_pipeline_variable(value)] or ["the configuration"]
        raise ConfigError(
            f"{', '.join(names)}: only known when the pipeline runs, so it cannot travel in the environment"
        ) from None


__all__ = ["MAX_VALUE", "agent_environment", "isolated"]
