"""Where a job's settings stand: the profile, the node's name, the rank; every path below SM_PROFILER_ROOT."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from sm_profiler.config import config_from_environment

CONFIG_PATH = "/opt/ml/input/config/profilerconfig.json"
RESOURCE_PATH = "/opt/ml/input/config/resourceconfig.json"
DEFAULT_LOCAL_PATH = "/opt/ml/output/profiler"
DEFAULT_NODE = "algo-1"
OPT_ML = "/opt/ml"


@attrs.frozen
class ConfigText:
    """The profile's JSON as it was found.

    Attributes:
        text: the JSON.
        path: the file it stood in, to be read again when it changes; None if it stood in the environment.
        changed: the file's mtime in nanoseconds, 0 without a file.
    """

    text: str
    path: Path | None = None
    changed: int = 0


def rooted(path: str, environment: Mapping[str, str] = os.environ) -> Path:
    """A path with a leading `/opt/ml` replaced by SM_PROFILER_ROOT where that is set."""
    root = environment.get("SM_PROFILER_ROOT")
    if root and (path == OPT_ML or path.startswith(OPT_ML + "/")):
        return Path(root + path[len(OPT_ML) :])
    return Path(path)


def find_config(environment: Mapping[str, str] = os.environ) -> ConfigText | None:
    """The profile of this job, or None.

    Raises:
        OSError, UnicodeDecodeError: a file that was named cannot be read.
        SourceError: an s3:// address that was named cannot be read.
    """
    named = config_from_environment(environment)
    if named:
        if named.lstrip().startswith("{"):
            return ConfigText(named)
        return _from_s3(named) if named.startswith("s3://") else read_config(rooted(named, environment))
    path_named = environment.get("SMPROFILER_CONFIG_PATH")
    if path_named:
        return read_config(rooted(path_named, environment))
    path = rooted(CONFIG_PATH, environment)
    return read_config(path) if path.is_file() else None


def read_config(path: Path) -> ConfigText:
    """The text of a profile's file, with the time of its last change."""
    changed = path.stat().st_mtime_ns
    return ConfigText(path.read_text("utf-8-sig"), path, changed)


def node_name(environment: Mapping[str, str] = os.environ) -> str:
    """`algo-N` as resourceconfig.json says, `algo-1` without that file."""
    try:
        resources = json.loads(rooted(RESOURCE_PATH, environment).read_text())
        return str(resources["current_host"])
    except (OSError, ValueError, KeyError, TypeError):
        return DEFAULT_NODE


def instance_type(environment: Mapping[str, str] = os.environ) -> str | None:
    """The machine's type as resourceconfig.json says, e.g. `ml.g5.xlarge`; None without that file."""
    try:
        return str(json.loads(rooted(RESOURCE_PATH, environment).read_text())["current_instance_type"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_first_node(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this node is the first of the job's hosts."""
    try:
        resources = json.loads(rooted(RESOURCE_PATH, environment).read_text())
        return str(resources["current_host"]) == str(min(resources["hosts"], key=_host_number))
    except (OSError, ValueError, KeyError, TypeError):
        return True


def rank_from(environment: Mapping[str, str] = os.environ) -> int | None:
    """The process's rank by the launcher's variables, or None."""
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SMDATAPARALLEL_RANK"):
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return None


def _host_number(host: str) -> tuple[int, str]:
    digits = host.rpartition("-")[2]
    return (int(digits) if digits.isdigit() else 0, host)


def _from_s3(uri: str) -> ConfigText:
    from sm_profiler.storage import open_storage  # noqa: PLC0415 - boto3 only where an address asks for it

    prefix, _, key = uri.rpartition("/")
    return ConfigText(open_storage(prefix).read(key).decode())
