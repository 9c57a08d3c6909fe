"""A configuration in environment variables: one variable, or numbered parts if it is too long for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm_profiler.config.api import MAX_VARIABLE_LENGTH, MAX_VARIABLES
from sm_profiler.errors import ConfigError
from sm_profiler.settings import CONFIG

if TYPE_CHECKING:
    from collections.abc import Mapping


def environment_for(text: str) -> dict[str, str]:
    """Return the variables that carry a configuration: `SM_PROFILER_CONFIG`, or `SM_PROFILER_CONFIG_0`, `_1` and so on.

    Args:
        text: the configuration as JSON, a path or an `s3://` URI.

    Raises:
        ConfigError: the text is longer than the variables of one job can hold.
    """
    if len(text) <= MAX_VARIABLE_LENGTH:
        return {CONFIG.name: text}
    parts = [text[at : at + MAX_VARIABLE_LENGTH] for at in range(0, len(text), MAX_VARIABLE_LENGTH)]
    if len(parts) >= MAX_VARIABLES:
        raise ConfigError(f"the profiler configuration is too long for a job's environment: {len(text)} characters")
    return {f"{CONFIG.name}_{number}": part for number, part in enumerate(parts)}


def config_from_environment(environment: Mapping[str, str]) -> str | None:
    """Return the configuration in an environment: JSON text, a path or an `s3://` URI; None if it has none."""
    whole = CONFIG.text(environment)
    if whole:
        return whole
    parts: list[str] = []
    while (part := environment.get(f"{CONFIG.name}_{len(parts)}")) is not None:
        parts.append(part)
    return "".join(parts) or None
