"""Parse profiler configurations, explain them in plain English, and carry them in a container's environment."""

from typing import TYPE_CHECKING

from sm_profiler._lazy import lazy_exports
from sm_profiler.config.api import config_from_environment, environment_for, format_metrics, parse_metrics
from sm_profiler.config.profile import COLLECTORS, CollectorConfig, Profile, load_profile

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

if TYPE_CHECKING:
    from sm_profiler.config.explaining import Explanation, explain
else:  # a training container never explains a profile
    __getattr__, __dir__ = lazy_exports(__name__, {"explaining": ["Explanation", "explain"]})
