"""Image that evaluates the built-in rules: the registered one, or AWS's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sm_profiler.container import RULE_IMAGE_VARIABLE
from sm_profiler.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_IMAGE = "DEFAULT_RULE_EVALUATOR_IMAGE"
DETAILED = "DetailedProfilerProcessingJobConfig"
KEY = "rule_image"


def settings_path() -> Path:
    """Return the path of the settings file: `SM_PROFILER_SETTINGS`, or else `~/.config/sm-profiler/config.json`."""
    from pathlib import Path  # keeps `import sm_profiler.debugger` quick

    named = os.environ.get("SM_PROFILER_SETTINGS")
    if named:
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "sm-profiler" / "config.json"


def registered_image(region: str | None, image_uri: str | None = None) -> str | None:
    """Return the registered rule image for a region, or None.

    It is taken from the argument, from `SM_PROFILER_RULE_IMAGE`, or from `rule_image` in the settings file, which is one
    URI or an object region → URI with `*` for all others. `{region}` in a URI is replaced by the region.

    Raises:
        ConfigError: the settings file cannot be read.
    """
    found: Any = image_uri or os.environ.get(RULE_IMAGE_VARIABLE) or _settings().get(KEY)
    if isinstance(found, dict):
        found = found.get(region or _region_of_environment()) or found.get("*")
    if not found:
        return None
    if not isinstance(found, str):
        raise ConfigError(f"{settings_path()}: {KEY} must be an image URI, or an object region → URI")
    if "{region}" not in found:
        return found
    known = region or _region_of_environment()
    return found.replace("{region}", known) if known else None


def _region_of_environment() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def _settings() -> dict[str, Any]:
    import json  # keeps `import sm_profiler.debugger` quick

    path = settings_path()
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return settings
