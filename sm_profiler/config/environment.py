"""A configuration in environment variables: one where it fits, else numbered parts that are joined again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm_profiler.container import CONFIG_VARIABLE
from sm_profiler.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

# the API's limits for one variable's value, and for their number
MAX_VALUE = 512
MAX_VARIABLES = 100


def environment_for(text: str) -> dict[str, str]:
    """The variables that carry a configuration: `SM_PROFILER_CONFIG`, or `SM_PROFILER_CONFIG_0`, `_1` and so on.

    Raises:
        ConfigError: it is longer than the variables of one job can hold.
    """
    if len(text) <= MAX_VALUE:
        return {CONFIG_VARIABLE: text}
    parts = [text[at : at + MAX_VALUE] for at in range(0, len(text), MAX_VALUE)]
    if len(parts) >= MAX_VARIABLES:
        raise ConfigError(f"the profiler configuration is too long for a job's environment: {len(text)} characters")
    return {f"{CONFIG_VARIABLE}_{number}": part for number, part in enumerate(parts)}


def config_from_environment(environment: Mapping[str, str]) -> str | None:
    """What the environment says: JSON text, a path or an s3:// URI; None where it says nothing."""
    whole = environment.get(CONFIG_VARIABLE)
    if whole:
        return whole
    parts: list[str] = []
    while (part := environment.get(f"{CONFIG_VARIABLE}_{len(parts)}")) is not None:
        parts.append(part)
    return "".join(parts) or None
