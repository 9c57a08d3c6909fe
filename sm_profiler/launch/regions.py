"""Where the managed service can profile, as SDK v2 knows it, and what to say where it cannot."""

from __future__ import annotations

from sm_profiler.errors import ConfigError

# SDK v2.257's PROFILER_UNSUPPORTED_REGIONS
UNSUPPORTED_REGIONS = frozenset(
    {
        "us-iso-east-1",
        "us-isob-east-1",
        "ap-southeast-3",
        "ap-southeast-4",
        "eu-south-2",
        "me-central-1",
        "ap-south-2",
        "eu-central-2",
        "us-gov-east-1",
    }
)


def refuse_where_unsupported(region: object, instance_type: object = None) -> None:
    """Say where the managed service cannot profile.

    Raises:
        ConfigError: the region has no profiling, or the instances are of the trn family.
    """
    if isinstance(region, str) and region.lower() in UNSUPPORTED_REGIONS:
        raise ConfigError(f"SageMaker has no managed profiling in {region}: use attach(…, backend='agent')")
    if isinstance(instance_type, str) and instance_type.startswith(("ml.trn", "ml_trn")):
        raise ConfigError(f"SageMaker has no managed profiling on {instance_type}: use attach(…, backend='agent')")
