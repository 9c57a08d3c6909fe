"""Image that evaluates the built-in rules: the registered one, or AWS's."""

from __future__ import annotations

import os
from typing import Any

from sm_profiler.errors import ConfigError
from sm_profiler.settings import RULE_IMAGE, read_file, settings_path

DEFAULT_IMAGE = "DEFAULT_RULE_EVALUATOR_IMAGE"
DETAILED = "DetailedProfilerProcessingJobConfig"
KEY = RULE_IMAGE.file_key


def registered_image(region: str | None, image_uri: str | None = None) -> str | None:
    """Return the registered rule image for a region, or None.

    It is taken from the argument, from `SM_PROFILER_RULE_IMAGE`, or from `rule_image` in the settings file, which is one
    URI or an object region → URI with `*` for all others. `{region}` in a URI is replaced by the region.

    Raises:
        ConfigError: the settings file cannot be read.
    """
    found: Any = image_uri or RULE_IMAGE.read() or read_file(settings_path()).get(KEY)
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
