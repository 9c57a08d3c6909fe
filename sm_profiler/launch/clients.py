"""boto3 clients and sessions: the profiler's part is added to every request that creates a training job."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

from sm_profiler.container import AUTO_VARIABLE, CHECKPOINTS
from sm_profiler.errors import ConfigError
from sm_profiler.launch.attachment import Attachment
from sm_profiler.launch.environment import MAX_VARIABLES_TUNING, agent_environment
from sm_profiler.launch.regions import refuse_where_unsupported
from sm_profiler.launch.request import refuse_what_the_service_refuses, to_request

logger = logging.getLogger(__name__)

_TRAINING = "provide-client-params.sagemaker.CreateTrainingJob"
_TUNING = "provide-client-params.sagemaker.CreateHyperParameterTuningJob"


def attach_client(client: Any, profiler_config: Any, rules: Sequence[Any], backend: str) -> Attachment:
    """Attach to one SageMaker client: every training job that it creates from now on.

    Raises:
        ConfigError: it is a client of another service.
    """
    service = client.meta.service_model.service_name
    if service != "sagemaker":
        raise ConfigError(f"attach takes a SageMaker client, not one of {service}")
    adder = _Adder(profiler_config, rules, backend, client.meta.region_name, None)
    return Attachment(
        f"every training job created by this client is profiled ({backend})", [adder.register(client.meta.events)]
    )


def attach_session(
    session: Any, profiler_config: Any, rules: Sequence[Any], backend: str, made: Any = None
) -> Attachment:
    """Attach to a boto3 session: every training job of every client made from it afterwards.

    Clients that SDK v3 has already made of it and keeps, and `made`, an SDK session's own, are attached to as well.
    """
    adder = _Adder(profiler_config, rules, backend, session.region_name, session)
    clients = {id(client): client for client in (made, *_kept_by_sdk3(session)) if hasattr(client, "meta")}
    undo = [adder.register(session.events), *(adder.register(client.meta.events) for client in clients.values())]
    says = f"every training job of this session is profiled ({backend}), whoever starts it"
    logger.info("sm-profiler: %s", says)
    return Attachment(says, undo)


def _kept_by_sdk3(session: Any) -> list[Any]:
    """The SageMaker clients of this session that SDK v3 keeps for the process."""
    maker = getattr(sys.modules.get("sagemaker.core.utils.utils"), "SageMakerClient", None)
    kept = getattr(type(maker), "_instances", {}).get(maker)
    makers = list(kept.values()) if isinstance(kept, dict) else [kept]  # one for the whole process before 3.27
    return [one.sagemaker_client for one in makers if one is not None and getattr(one, "session", session) is session]


class _Adder:
    """Adds one configuration to requests, as botocore hands them out before it checks them."""

    def __init__(
        self, profiler_config: Any, rules: Sequence[Any], backend: str, region: str | None, session: Any
    ) -> None:
        self.profiler_config = profiler_config
        self.rules = rules
        self.backend = backend
        self.region = region
        self.session = session

    def register(self, events: Any) -> Any:
        """Listen; returns what stops it."""
        handlers = {_TRAINING: self.training, _TUNING: self.tuning}
        for event, handler in handlers.items():
            events.register(event, handler)

        def stop() -> None:
            for event, handler in handlers.items():
                events.unregister(event, handler)

        return stop

    def training(self, params: dict[str, Any], **_more: Any) -> dict[str, Any]:
        """The parameters of CreateTrainingJob, with the profiler's part."""
        if self.backend == "agent":
            return {**params, "Environment": self._environment(params)}
        output = (params.get("OutputDataConfig") or {}).get("S3OutputPath")
        refuse_where_unsupported(self.region, (params.get("ResourceConfig") or {}).get("InstanceType"))
        made = to_request(
            self.profiler_config, self.rules, region=self.region, session=self.session, s3_output_path=output
        )
        before = params.get("ProfilerConfig") or {}
        if before.get("ProfilingParameters"):  # an SDK v2 Estimator always sends a bare one, which nobody wrote
            logger.warning("sm-profiler: the request's own ProfilerConfig is replaced by the attached one")
        ours = made.get("ProfilerRuleConfigurations", [])
        names = {rule["RuleConfigurationName"] for rule in ours}
        theirs = [
            rule
            for rule in params.get("ProfilerRuleConfigurations") or ()
            if rule["RuleConfigurationName"] not in names
        ]
        changed = {**params, **made}
        if theirs:
            changed["ProfilerRuleConfigurations"] = [*theirs, *ours]
            refuse_what_the_service_refuses(changed)
        if "ProfilingParameters" in made["ProfilerConfig"]:
            changed["Environment"] = {AUTO_VARIABLE: "1", **(params.get("Environment") or {})}
        return changed

    def tuning(self, params: dict[str, Any], **_more: Any) -> dict[str, Any]:
        """The parameters of CreateHyperParameterTuningJob, whose trials have an environment but no profiler keys."""
        if self.backend != "agent":
            logger.warning(
                "sm-profiler: a tuning job's request has no place for a profiler configuration, so its trials are not "
                "profiled: attach with backend='agent'"
            )
            return params
        changed = dict(params)
        if "TrainingJobDefinition" in params:
            one = params["TrainingJobDefinition"]
            changed["TrainingJobDefinition"] = {**one, "Environment": self._environment(one, MAX_VARIABLES_TUNING)}
        if "TrainingJobDefinitions" in params:
            changed["TrainingJobDefinitions"] = [
                {**one, "Environment": self._environment(one, MAX_VARIABLES_TUNING)}
                for one in params["TrainingJobDefinitions"]
            ]
        return changed

    def _environment(self, params: dict[str, Any], most: int = 100) -> dict[str, Any]:
        output, checkpoints = params.get("OutputDataConfig") or {}, params.get("CheckpointConfig")
        return agent_environment(
            self.profiler_config,
            params.get("Environment"),
            s3_output_path=output.get("S3OutputPath"),
            kms_key_id=output.get("KmsKeyId"),
            network_isolation=params.get("EnableNetworkIsolation") is True,
            checkpoint_path=checkpoints.get("LocalPath", CHECKPOINTS) if checkpoints else None,
            most=most,
        )
