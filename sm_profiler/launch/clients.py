"""boto3 clients and sessions: add the profiler's parameters to every request that creates a training job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from sm_profiler.config.api import MAX_VARIABLES, MAX_VARIABLES_TUNING
from sm_profiler.container import CHECKPOINTS
from sm_profiler.errors import ConfigError
from sm_profiler.launch.environment import agent_environment
from sm_profiler.launch.request import build_request, require_accepted, require_managed_profiling
from sm_profiler.printable import logger_for
from sm_profiler.settings import AUTO

logger = logger_for(__name__)

_TRAINING = "provide-client-params.sagemaker.CreateTrainingJob"
_TUNING = "provide-client-params.sagemaker.CreateHyperParameterTuningJob"
_CHANGED_TUNING = "before-parameter-build.sagemaker.CreateHyperParameterTuningJob"  # after the handlers of _TUNING
_TUNING_ID = "sm-profiler-tuning"


def attach_client(
    client: Any, profiler_config: Any, rules: Sequence[Any], backend: str
) -> tuple[str, list[Callable[[], object]]]:
    """Profile every training job that one SageMaker client creates from now on.

    Returns:
        A description, and functions that undo it.

    Raises:
        ConfigError: it is a client of another service.
    """
    service = client.meta.service_model.service_name
    if service != "sagemaker":
        raise ConfigError(f"attach takes a SageMaker client, not one of {service}")
    adder = _Adder(profiler_config, rules, backend, client.meta.region_name, None)
    return f"every training job created by this client is profiled ({backend})", [adder.register(client.meta.events)]


def attach_session(
    session: Any, profiler_config: Any, rules: Sequence[Any], backend: str, existing: Any = None
) -> tuple[str, list[Callable[[], object]]]:
    """Profile every training job of every client that is created from a boto3 session afterwards.

    Of the clients that were created before, those that SDK v3 caches and `existing`, an SDK session's own, are included.

    Returns:
        A description, and functions that undo it.
    """
    adder = _Adder(profiler_config, rules, backend, session.region_name, session)
    clients = {id(client): client for client in (existing, *_cached_by_sdk3(session)) if hasattr(client, "meta")}
    undo = [adder.register(session.events), *(adder.register(client.meta.events) for client in clients.values())]
    description = f"every training job of this session is profiled ({backend})"
    logger.info("sm-profiler: %s", description)
    return description, undo


def _cached_by_sdk3(session: Any) -> list[Any]:
    """Return the SageMaker clients of a session that SDK v3 caches for the process."""
    maker = getattr(sys.modules.get("sagemaker.core.utils.utils"), "SageMakerClient", None)
    kept = getattr(type(maker), "_instances", {}).get(maker)
    makers = list(kept.values()) if isinstance(kept, dict) else [kept]  # a single one before 3.27
    return [
        maker.sagemaker_client
        for maker in makers
        if maker is not None and getattr(maker, "session", session) is session
    ]


def warn_of_tuning(client: Any) -> Callable[[], object]:
    """Warn when a client of SageMaker creates a tuning job, whose trials the service backend cannot profile.

    Returns:
        A function that ends it.
    """
    return _on(_TUNING, lambda: [client.meta.events], _tuning_is_not_profiled, _TUNING_ID)


def warn_of_tuning_in(session: Any) -> Callable[[], object]:
    """Warn when a boto3 session creates a tuning job from a ModelTrainer, of which a tuner of SDK v3 reads the attributes only.

    Returns:
        A function that ends it.
    """

    def emitters() -> list[Any]:  # a client that is created later has the session's handlers, too
        return [session.events, *(client.meta.events for client in _cached_by_sdk3(session))]

    return _on(_CHANGED_TUNING, emitters, _trainer_is_not_asked, f"{_TUNING_ID}-of-trainer")


def _on(event: str, emitters: Callable[[], list[Any]], handler: Callable[..., None], name: str) -> Callable[[], object]:
    for events in emitters():
        events.register(event, handler, unique_id=name)  # once for all that are attached

    def stop() -> None:
        for events in emitters():
            events.unregister(event, handler, unique_id=name)

    return stop


def _tuning_is_not_profiled(**_request: Any) -> None:
    logger.warning(
        "sm-profiler: a tuning job's request cannot carry a profiler configuration, so its trials are not profiled: "
        "attach with backend='agent'"
    )


def _trainer_is_not_asked(params: Mapping[str, Any], **_more: Any) -> None:
    several = params.get("TrainingJobDefinitions")
    definitions = [params.get("TrainingJobDefinition"), *(several if isinstance(several, list) else ())]
    environments = [trial.get("Environment") or () for trial in definitions if isinstance(trial, Mapping)]
    if any(AUTO.name in environment for environment in environments):
        return  # the session is attached, too, or these are the user's own variables
    logger.warning(
        "sm-profiler: a tuner does not take the configuration that is attached to its ModelTrainer, so its trials are not "
        "profiled: attach(trainer.sagemaker_session, …, backend='agent')"
    )


@attrs.define(eq=False)
class _Adder:
    """Handlers that add a configuration to the parameters of a request before botocore validates them."""

    profiler_config: Any
    rules: Sequence[Any]
    backend: str
    region: str | None
    session: Any

    def register(self, events: Any) -> Callable[[], object]:
        """Register the handlers and return a function that unregisters them."""
        handlers = {_TRAINING: self.training, _TUNING: self.tuning}
        for event, handler in handlers.items():
            events.register(event, handler)

        def stop() -> None:
            for event, handler in handlers.items():
                events.unregister(event, handler)

        return stop

    def training(self, params: dict[str, Any], **_more: Any) -> dict[str, Any]:
        """Add the profiler's parameters to those of CreateTrainingJob."""
        if self.backend == "agent":
            return {**params, "Environment": self._environment(params)}
        output = _member(params, "OutputDataConfig", "S3OutputPath")
        require_managed_profiling(self.region, _member(params, "ResourceConfig", "InstanceType"))
        added = build_request(
            self.profiler_config, self.rules, region=self.region, session=self.session, s3_output_path=output
        )
        if _member(
            params, "ProfilerConfig", "ProfilingParameters"
        ):  # a bare ProfilerConfig is an SDK v2 Estimator's default
            logger.warning("sm-profiler: the request's own ProfilerConfig is replaced by the attached one")
        ours = added.get("ProfilerRuleConfigurations", [])
        names = [rule["RuleConfigurationName"] for rule in ours]
        existing = params.get("ProfilerRuleConfigurations")
        theirs = [
            rule
            for rule in (existing if isinstance(existing, list) else ())
            if not isinstance(rule, Mapping) or rule.get("RuleConfigurationName") not in names
        ]
        changed = {**params, **added}
        if theirs:
            changed["ProfilerRuleConfigurations"] = [*theirs, *ours]
            require_accepted(changed)
        if "ProfilingParameters" in added["ProfilerConfig"]:
            environment = params.get("Environment")
            if environment is None or isinstance(environment, Mapping):  # botocore reports anything else
                changed["Environment"] = {AUTO.name: "1", **(environment or {})}
        return changed

    def tuning(self, params: dict[str, Any], **_more: Any) -> dict[str, Any]:
        """Add the profiler's variables to the environment of a tuning job's trials, which have no profiler keys."""
        if self.backend != "agent":
            _tuning_is_not_profiled()
            return params
        changed = dict(params)
        if "TrainingJobDefinition" in params:
            changed["TrainingJobDefinition"] = self._definition(params["TrainingJobDefinition"])
        if isinstance(params.get("TrainingJobDefinitions"), list):
            changed["TrainingJobDefinitions"] = [self._definition(trial) for trial in params["TrainingJobDefinitions"]]
        return changed

    def _definition(self, definition: Any) -> Any:
        if not isinstance(definition, dict):
            return definition  # botocore reports it
        return {**definition, "Environment": self._environment(definition, MAX_VARIABLES_TUNING)}

    def _environment(self, params: dict[str, Any], limit: int = MAX_VARIABLES) -> dict[str, Any]:
        checkpoints = _member(params, "CheckpointConfig", "LocalPath") or CHECKPOINTS
        return agent_environment(
            self.profiler_config,
            params.get("Environment"),
            s3_output_path=_member(params, "OutputDataConfig", "S3OutputPath"),
            kms_key_id=_member(params, "OutputDataConfig", "KmsKeyId"),
            network_isolation=params.get("EnableNetworkIsolation") is True,
            checkpoint_path=checkpoints if params.get("CheckpointConfig") else None,
            max_variables=limit,
        )


def _member(params: Mapping[str, Any], name: str, member: str) -> Any:
    """Return a member of a parameter, or None if either is missing or the parameter is not an object."""
    value = params.get(name)
    return value.get(member) if isinstance(value, Mapping) else None
