"""SDK v3's ModelTrainer, which has no place for a profiler configuration.

It makes every request in one method, `_create_training_job_args`, for `train()`, for pipelines and for the Batch queue;
that method is wrapped for the one instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sm_profiler.container import AUTO_VARIABLE, CHECKPOINTS
from sm_profiler.errors import ConfigError
from sm_profiler.launch.attachment import Attachment
from sm_profiler.launch.environment import agent_environment
from sm_profiler.launch.regions import refuse_where_unsupported
from sm_profiler.launch.request import to_request
from sm_profiler.launch.shapes import TESTED, request_to_shapes, sdk_version

METHOD = "_create_training_job_args"


def attach_model_trainer(trainer: Any, profiler_config: Any, rules: Sequence[Any], backend: str) -> Attachment:
    """Attach to a ModelTrainer of SDK v3.

    Raises:
        ConfigError: the method that makes the request is missing or answers otherwise than in the tested versions.
    """
    kind = type(trainer)
    if not callable(getattr(trainer, METHOD, None)):
        raise _unknown(f"ModelTrainer has no {METHOD}")
    add = _add_to_environment if backend == "agent" else _add_to_request

    def made(self: Any, *arguments: Any, **keywords: Any) -> Any:
        request = getattr(kind, METHOD)(self, *arguments, **keywords)
        add(_Request(request), self, profiler_config, rules)
        return request

    # A class of its own for this one instance, rather than a function on it: so a copy of the ModelTrainer makes its own
    # requests, and not the original's.
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, METHOD: made}
    object.__setattr__(trainer, "__class__", _new_class(kind, names))

    def restore() -> None:
        object.__setattr__(trainer, "__class__", kind)

    where = "the environment" if backend == "agent" else "the job's request"
    return Attachment(f"the configuration travels in {where} of every job that this ModelTrainer starts", [restore])


def _new_class(kind: type, names: dict[str, Any]) -> type:
    metaclass: Any = type(kind)  # pydantic's
    made: type = metaclass(kind.__name__, (kind,), names)
    return made


class _Request:
    """A request that is either in snake_case with shapes, or as boto3 takes it."""

    def __init__(self, request: Any) -> None:
        if not isinstance(request, dict) or not {"output_data_config", "OutputDataConfig"} & request.keys():
            raise _unknown(f"ModelTrainer.{METHOD} does not answer with a request")
        self.request = request
        self.pascal = "OutputDataConfig" in request

    def get(self, name: str, inner: str | None = None) -> Any:
        """A parameter by its API name, or one inside it; None where it is not given."""
        value = self.request.get(name if self.pascal else _snake(name))
        if inner is not None:
            value = value.get(inner) if isinstance(value, dict) else getattr(value, _snake(inner), None)
        return None if type(value).__name__ == "Unassigned" else value

    def set(self, name: str, value: Any) -> None:
        """Set a parameter by its API name."""
        self.request[name if self.pascal else _snake(name)] = value


def _add_to_request(request: _Request, trainer: Any, profiler_config: Any, rules: Sequence[Any]) -> None:
    session = getattr(trainer.sagemaker_session, "boto_session", None)
    refuse_where_unsupported(getattr(session, "region_name", None), request.get("ResourceConfig", "InstanceType"))
    made = to_request(
        profiler_config, rules, session=session, s3_output_path=request.get("OutputDataConfig", "S3OutputPath")
    )
    if "ProfilingParameters" in made["ProfilerConfig"]:
        request.set("Environment", {AUTO_VARIABLE: "1", **(request.get("Environment") or {})})
    request.request.update(made if request.pascal else request_to_shapes(made))


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
