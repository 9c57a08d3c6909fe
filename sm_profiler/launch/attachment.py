"""`attach`: one call for every launcher, and its result, which can be undone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from sm_profiler.errors import ConfigError
from sm_profiler.launch.clients import attach_client, attach_session
from sm_profiler.launch.environment import require_uploadable
from sm_profiler.launch.estimator import attach_estimator
from sm_profiler.launch.model_trainer import attach_model_trainer
from sm_profiler.launch.request import checked_rules, config_request, require_accepted

BACKENDS = ("service", "agent")
# classes by name, so that no SDK is imported to recognize its objects
_LAUNCHERS = {
    "EstimatorBase": attach_estimator,
    "ModelTrainer": attach_model_trainer,
    "BaseClient": attach_client,
    "Session": attach_session,
}


@attrs.define
class Attachment:
    """A configuration attached to a launcher; `detach()`, or leaving a `with` block, removes it.

    Attributes:
        description: the effect in one line.
    """

    description: str
    _undo: list[Callable[[], object]] = attrs.field(factory=list, repr=False)

    def detach(self) -> None:
        """Restore the launcher; a second call has no effect."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Attachment:  # noqa: PYI034 - Self came with Python 3.11
        """Return the attachment itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Detach."""
        self.detach()


def attach(
    target: Any, profiler_config: Any = None, rules: Sequence[Any] | None = None, backend: str = "service"
) -> Attachment:
    """Attach a configuration to the object that starts the training job.

    Args:
        target: an Estimator of SDK v2, a ModelTrainer of SDK v3, a boto3 SageMaker client, or a boto3 or SDK session. With
            a session, every training job that its clients start afterwards is profiled.
        profiler_config: a ProfilerConfig; None records system metrics only.
        rules: ProfilerRule objects.
        backend: `service` sends the configuration in the request, and AWS's managed service samples, uploads and runs
            the rules; `agent` puts it into the container's environment and does not use the managed service.

    Returns:
        The attachment, which can be undone.

    Raises:
        ConfigError: the target is none of these, the configuration or the rules are something else, or the service would
            reject the configuration.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend must be 'service' or 'agent', not {backend!r}")
    rules = checked_rules(rules)
    config = config_request(profiler_config)
    if backend == "service":
        require_accepted({"ProfilerConfig": config})
    elif config.get("S3OutputPath") is not None:
        require_uploadable(config["S3OutputPath"])
    if backend == "agent" and rules:
        warnings.warn(
            "backend='agent' starts no rule jobs: evaluate the profile with `sm-profiler report`, or start the rules with "
            "`sm-profiler rules start --job NAME`",
            stacklevel=2,
        )
    for base in type(target).__mro__:
        if base.__name__ == "Session" and base.__module__.startswith("sagemaker"):
            client = getattr(target, "sagemaker_client", None)
            return Attachment(*attach_session(target.boto_session, profiler_config, rules, backend, client))
        if base.__name__ in _LAUNCHERS and base.__module__.partition(".")[0] in ("sagemaker", "botocore", "boto3"):
            return Attachment(*_LAUNCHERS[base.__name__](target, profiler_config, rules, backend))
    raise ConfigError(
        f"attach takes an Estimator, a ModelTrainer, a boto3 client or a session, not {type(target).__name__}; "
        "use to_request for other launchers"
    )
