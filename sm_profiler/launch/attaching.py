"""`attach`: one call for every launcher."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from sm_profiler.errors import ConfigError
from sm_profiler.launch.attachment import Attachment
from sm_profiler.launch.clients import attach_client, attach_session
from sm_profiler.launch.estimator import attach_estimator
from sm_profiler.launch.model_trainer import attach_model_trainer

BACKENDS = ("service", "agent")
# known by their classes' names, so that no SDK is imported to find out
_KINDS = {
    "EstimatorBase": attach_estimator,
    "ModelTrainer": attach_model_trainer,
    "BaseClient": attach_client,
    "Session": attach_session,
}


def attach(
    target: Any, profiler_config: Any = None, rules: Sequence[Any] | None = None, backend: str = "service"
) -> Attachment:
    """Attach a configuration to whatever starts the training job.

    Args:
        target: an Estimator of SDK v2, a ModelTrainer of SDK v3, a boto3 SageMaker client, a boto3 or SDK session.
        profiler_config: a ProfilerConfig; None means system metrics only.
        rules: ProfilerRule objects.
        backend: `service` sends the configuration in the request, and AWS's managed service samples, uploads and runs
            the rules; `agent` puts it into the container's environment and asks nothing of the managed service.

    Returns:
        The attachment, which can be undone.  One to a session touches every job that its clients start afterwards.

    Raises:
        ConfigError: the target is none of these, or the service would refuse the configuration.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend must be 'service' or 'agent', not {backend!r}")
    if backend == "agent" and rules:
        warnings.warn(
            "backend='agent' starts no rule jobs: judge the profile with `sm-profiler report`, or start the rules with "
            "`sm-profiler rules start --job NAME`",
            stacklevel=2,
        )
    for base in type(target).__mro__:
        if base.__name__ == "Session" and base.__module__.startswith("sagemaker"):
            made = getattr(target, "sagemaker_client", None)
            return attach_session(target.boto_session, profiler_config, rules or (), backend, made)
        if base.__name__ in _KINDS and base.__module__.partition(".")[0] in ("sagemaker", "botocore", "boto3"):
            return _KINDS[base.__name__](target, profiler_config, rules or (), backend)
    raise ConfigError(
        f"attach takes an Estimator, a ModelTrainer, a boto3 client or a session, not {type(target).__name__}; "
        "for other launchers there is to_request"
    )
