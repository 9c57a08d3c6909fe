"""Parse profiler configurations, explain them in plain English, and carry them in a container's environment."""

from typing import TYPE_CHECKING, Any

from sm_profiler.config.environment import config_from_environment, environment_for
from sm_profiler.config.loading import load_profile
from sm_profiler.config.notation import format_metrics, parse_metrics
from sm_profiler.config.profile import COLLECTORS, CollectorConfig, Profile

if TYPE_CHECKING:
    from sm_profiler.config.explaining import Explanation, explain

__all__ = [
    "COLLECTORS",
    "CollectorConfig",
    "Explanation",
    "Profile",
    "config_from_environment",
    "environment_for",
    "explain",
    "format_metrics",
    "load_profile",
    "parse_metrics",
]


def __getattr__(name: str) -> Any:
    if name not in {"Explanation", "explain"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sm_profiler.config import explaining  # noqa: PLC0415 - training containers never need it

    return getattr(explaining, name)
