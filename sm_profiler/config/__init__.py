"""The wire notation of a profile: parsed, never evaluated, and said in plain words."""

from sm_profiler.config.environment import config_from_environment, environment_for
from sm_profiler.config.explain import Explanation, explain
from sm_profiler.config.loading import load_profile
from sm_profiler.config.notation import format_metrics, parse_metrics
from sm_profiler.config.profile import COLLECTORS, CollectorConfig, Profile

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
