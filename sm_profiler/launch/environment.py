"""`backend="agent"`: the configuration is passed in the container's environment, without the managed service."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm_profiler.config.api import KMS_KEY, MAX_VARIABLES, environment_for, may_exist, shown
from sm_profiler.container import DEFAULT_PROFILER_OUTPUT, ISOLATED_FOLDER, OUTPUT_DATA
from sm_profiler.debugger.images import is_on
from sm_profiler.errors import ConfigError
from sm_profiler.launch.request import config_request, is_pipeline_variable, require_right
from sm_profiler.printable import printable
from sm_profiler.settings import AUTO, CONFIG

_INSTALLS = re.compile(r"^[^#\n]*sm[-_.]profiler|^\s*(-r|--requirement)\b", re.MULTILINE | re.IGNORECASE)
INSTALL = "name sm-profiler[aws,gpu] in requirements.txt"
_S3_URI = re.compile(r"s3://([a-zA-Z0-9._-]{1,255}|arn:[^/\s]+)(/|\Z)")
_SWITCH = re.compile(rf"{AUTO.name}\Z")
_OURS = re.compile(rf"({CONFIG.name}(_\d+)?|{AUTO.name})\Z")


def may_install_profiler(folder: Path, *more: Path) -> bool:
    """Return whether a source folder, or more files of requirements, install sm-profiler, or what else may do so."""
    return any(map(_names_profiler, (folder / "requirements.txt", *more))) or (folder / "setup.py").is_file()


def _names_profiler(requirements: Path) -> bool:
    """Return whether a requirements file has sm-profiler, or refers to another file, which may."""
    try:
        return _INSTALLS.search(requirements.read_text("utf-8", "replace")) is not None
    except OSError:
        return False


def agent_environment(  # one argument for each setting of a job
    profiler_config: Any,
    environment: Mapping[str, Any] | None = None,
    *,
    s3_output_path: Any = None,
    kms_key_id: Any = None,
    network_isolation: bool = False,
    checkpoint_path: str | None = None,
    max_variables: int = MAX_VARIABLES,
) -> dict[str, Any]:
    """Return a copy of a job's environment with the profiler's variables added.

    Args:
        profiler_config: a ProfilerConfig of this package or of the SDK, or the API's object; None records system metrics
            only.
        environment: the job's own variables.
        s3_output_path: S3 URI that the profile is stored under if the configuration has none, such as the `S3OutputPath`
            of the job's results. One of the two must be given, unless the files stay in a `local_path` that is mounted
            into the container.
        kms_key_id: KMS key for the uploads.
        network_isolation: the container cannot upload anything; the files are written to a folder that the service stores.
        checkpoint_path: folder in the container that the service syncs, if the job has a CheckpointConfig.
        max_variables: the API's limit for the number of variables.

    Raises:
        ConfigError: the profile would be stored nowhere, the configuration does not fit into the environment or contains
            a pipeline variable, or the environment is not an object.
    """
    config = config_request(profiler_config, None if network_isolation else s3_output_path)
    if environment is not None and not isinstance(environment, Mapping):
        raise ConfigError(f"the job's environment must be an object, not {type(environment).__name__}")
    own = dict(environment or {})
    if config.get("DisableProfiler") is True:
        return own
    if not network_isolation:
        require_destination(config)
    require_right(config)
    if network_isolation:
        config = _isolated(config, checkpoint_path)
    elif kms_key_id is not None:
        config[KMS_KEY] = kms_key_id
    carried = {**environment_for(_to_json(config)), AUTO.name: "1"}
    merged = _merged(own, carried, _OURS)
    if len(merged) > max_variables:
        raise ConfigError(
            f"the job's environment has {len(own)} variables and the profiler needs {len(carried)}: the API accepts "
            f"{max_variables}"
        )
    return merged


def switched_on(environment: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of a job's environment that switches the hook on."""
    return _merged(dict(environment or {}), {AUTO.name: "1"}, _SWITCH)


def _merged(own: Mapping[str, Any], carried: Mapping[str, str], ours: re.Pattern[str]) -> dict[str, Any]:
    """Return a job's own variables and those that are carried; those of its own that differ are named in a warning."""
    changed = sorted(
        name
        for name, value in own.items()
        if ours.match(str(name)) and carried.get(name) != value and not (name == AUTO.name and is_on(value))
    )
    if changed:
        warnings.warn(
            f"the job's environment had {', '.join(changed)}: replaced by the attached configuration", stacklevel=4
        )
    return {name: value for name, value in own.items() if name not in changed} | dict(carried)


def require_destination(config: Mapping[str, Any]) -> None:
    """Check that the agent can upload a profile to its `S3OutputPath`, or that it is kept without a path."""
    path = config.get("S3OutputPath")
    if path is not None:
        require_uploadable(path)
        return
    parameters = config.get("ProfilingParameters")
    kept = parameters.get("LocalPath") if isinstance(parameters, Mapping) else None
    if not kept or (isinstance(kept, str) and kept.rstrip("/") == DEFAULT_PROFILER_OUTPUT):
        raise ConfigError(
            "the profile would be lost with the container: pass s3_output_path=, usually that of the job's results, or "
            "set it in the ProfilerConfig"
        )


def require_uploadable(path: object) -> None:
    """Check that the agent can upload to a path."""
    if is_pipeline_variable(path):
        return
    if not isinstance(path, str) or not _S3_URI.match(path):
        raise ConfigError(printable(f"S3OutputPath: {shown(path)} is not an S3 URI such as s3://bucket/prefix"))
    if not may_exist(path):
        raise ConfigError(
            printable(
                f"S3OutputPath: no bucket can have the name in {shown(path)}: at most 63 lowercase letters, digits, dots and "
                "hyphens, with a letter or a digit at both ends"
            )
        )


def _isolated(config: Mapping[str, Any], checkpoint_path: str | None) -> dict[str, Any]:
    """Return a configuration for a container without network, whose files are stored by the service.

    They are written to the folder of the CheckpointConfig, which is synced while the job runs, or else to the job's
    output, which is stored when it ends.
    """
    moved = {key: value for key, value in config.items() if key != "S3OutputPath"}
    if isinstance(moved.get("ProfilingParameters"), Mapping) and moved["ProfilingParameters"]:
        folder = f"{str(checkpoint_path or OUTPUT_DATA).rstrip('/')}/{ISOLATED_FOLDER}"
        moved["ProfilingParameters"] = {**moved["ProfilingParameters"], "LocalPath": folder}
    return moved


def _to_json(config: Mapping[str, Any]) -> str:
    try:
        # ASCII only, since the API does not count every other character as a single one
        return json.dumps(config, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the profiler configuration cannot be written as JSON: {error}") from None
    except TypeError:
        names = [key for key, value in config.items() if is_pipeline_variable(value)] or ["the configuration"]
        raise ConfigError(
            f"{', '.join(names)}: only known when the pipeline runs, so it cannot be passed in the environment"
        ) from None
