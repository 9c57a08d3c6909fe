"""Attach to a ModelTrainer of SDK v3, which takes no profiler configuration itself.

It builds every request in one method, `_create_training_job_args`: for `train()`, for pipelines and for the Batch queue.
That method is wrapped for the one instance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sm_profiler.container import AUTO_VARIABLE, CHECKPOINTS
from sm_profiler.errors import ConfigError
from sm_profiler.launch.clients import warn_of_tuning_in
from sm_profiler.launch.environment import agent_environment
from sm_profiler.launch.request import build_request, require_managed_profiling
from sm_profiler.launch.shapes import TESTED, request_to_shapes, sdk_version

METHOD = "_create_training_job_args"


def attach_model_trainer(
    trainer: Any, profiler_config: Any, rules: Sequence[Any], backend: str
) -> tuple[str, list[Callable[[], object]]]:
    """Add the configuration to every request of one ModelTrainer.

    Returns:
        A description, and functions that undo it.

    Raises:
        ConfigError: the method that builds the request is missing, or returns something else than in the tested version.
    """
    kind = type(trainer)
    if not callable(getattr(trainer, METHOD, None)):
        raise _unknown(f"ModelTrainer has no {METHOD}")
    add = _add_to_environment if backend == "agent" else _add_to_request

    def build(self: Any, *arguments: Any, **keywords: Any) -> Any:
        request = getattr(kind, METHOD)(self, *arguments, **keywords)
        add(_Request(request), self, profiler_config, rules)
        return request

    # A subclass for this one instance, since a copy of the ModelTrainer would share a wrapped method and send the
    # original's requests.
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, METHOD: build}
    object.__setattr__(trainer, "__class__", _new_class(kind, names))

    def restore() -> None:
        object.__setattr__(trainer, "__class__", kind)

    undo: list[Callable[[], object]] = [restore]
    session = getattr(getattr(trainer, "sagemaker_session", None), "boto_session", None)
    if hasattr(session, "events"):
        undo.append(warn_of_tuning_in(session))
    carrier = "environment" if backend == "agent" else "request"
    return f"the configuration is passed in the {carrier} of every job that this ModelTrainer starts", undo


def _new_class(kind: type, names: dict[str, Any]) -> type:
    metaclass: Any = type(kind)  # pydantic's
    subclass: type = metaclass(kind.__name__, (kind,), names)
    return subclass


class _Request:
    """A request in one of two forms: snake_case with shapes, or boto3's."""

    def __init__(self, request: Any) -> None:
        if not isinstance(request, dict) or not {"output_data_config", "OutputDataConfig"} & request.keys():
            raise _unknown(f"ModelTrainer.{METHOD} does not return a request")
        self.request = request
        self.pascal = "OutputDataConfig" in request

    def get(self, name: str, inner: str | None = None) -> Any:
        """Return a parameter by its API name, or a member of it; None if it is not set."""
        value = self.request.get(name if self.pascal else _snake(name))
        if inner is not None:
            value = value.get(inner) if isinstance(value, dict) else getattr(value, _snake(inner), None)
        return None if type(value).__name__ == "Unassigned" else value

    def set(self, name: str, value: Any) -> None:
        """Set a parameter by its API name."""
        self.request[name if self.pascal else _snake(name)] = value


def _add_to_request(request: _Request, trainer: Any, profiler_config: Any, rules: Sequence[Any]) -> None:
    session = getattr(trainer.sagemaker_session, "boto_session", None)
    require_managed_profiling(getattr(session, "region_name", None), request.get("ResourceConfig", "InstanceType"))
    added = build_request(
        profiler_config, rules, session=session, s3_output_path=request.get("OutputDataConfig", "S3OutputPath")
    )
    if "ProfilingParameters" in added["ProfilerConfig"]:
        request.set("Environment", {AUTO_VARIABLE: "1", **(request.get("Environment") or {})})
    request.request.update(added if request.pascal else request_to_shapes(added))


def _add_to_environment(request: _Request, trainer: Any, profiler_config: Any, _rules: Sequence[Any]) -> None:
    del trainer
    checkpoints = request.get("CheckpointConfig")
    environment = agent_environment(
        profiler_config,
        request.get("Environment"),
        s3_output_path=request.get("OutputDataConfig", "S3OutputPath"),
        kms_key_id=request.get("OutputDataConfig", "KmsKeyId"),
        network_isolation=request.get("EnableNetworkIsolation") is True,
        checkpoint_path=(request.get("CheckpointConfig", "LocalPath") or CHECKPOINTS) if checkpoints else None,
    )
    request.set("Environment", environment)


def _snake(name: str) -> str:
    return _SNAKE[name]


_SNAKE = {
    "OutputDataConfig": "output_data_config",
    "S3OutputPath": "s3_output_path",
    "KmsKeyId": "kms_key_id",
    "CheckpointConfig": "checkpoint_config",
    "LocalPath": "local_path",
    "ResourceConfig": "resource_config",
    "InstanceType": "instance_type",
    "Environment": "environment",
    "EnableNetworkIsolation": "enable_network_isolation",
}


def _unknown(what: str) -> ConfigError:
    return ConfigError(
        f"{what} in SageMaker SDK {sdk_version()}: attach works with {TESTED}; use TrainingJob.create(**to_shapes(…))"
    )
