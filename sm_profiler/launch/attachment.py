"""`attach`: one call for every launcher, and its result, which can be undone.

An Estimator of SDK v2 has attributes for the configuration. A ModelTrainer of SDK v3 has none, and builds every request in
one method, `_create_training_job_args`, for `train()`, for pipelines and for the Batch queue: that method is replaced for
the one instance.
"""

from __future__ import annotations

import copy
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from sm_profiler.config.api import MAX_VARIABLES, MAX_VARIABLES_TUNING
from sm_profiler.container import CHECKPOINTS
from sm_profiler.debugger import ProfilerConfig, ProfilerRule
from sm_profiler.debugger.images import AwsImage, warn_of_old
from sm_profiler.debugger.sdk_compat import is_kind
from sm_profiler.errors import ConfigError
from sm_profiler.launch.environment import (
    INSTALL,
    agent_environment,
    may_install_profiler,
    require_uploadable,
    switched_on,
)
from sm_profiler.launch.request import (
    TESTED,
    build_request,
    checked_rules,
    config_request,
    request_to_shapes,
    require_accepted,
    require_managed_profiling,
    require_right,
    sdk_version,
    snake_case,
)
from sm_profiler.printable import logger_for
from sm_profiler.settings import AUTO

LOCAL_MODES = ("local", "local_gpu")


def attach_estimator(
    estimator: Any, profiler_config: Any, rules: Sequence[Any], backend: str
) -> tuple[str, list[Callable[[], object]]]:
    """Set an Estimator's attributes as if the configuration had been passed to its constructor.

    Returns:
        A description, and functions that undo it.
    """
    others = [rule for rule in estimator.rules or [] if not is_kind(rule, ProfilerRule)]
    dropped = [rule.name for rule in estimator.rules or [] if is_kind(rule, ProfilerRule)]
    if dropped:
        warnings.warn(f"the Estimator's profiler rules are replaced: {', '.join(map(str, dropped))}", stacklevel=3)
    if others:
        names = ", ".join(str(rule.name) for rule in others)
        warnings.warn(
            f"{names}: rules on tensors, which sm-profiler neither records nor judges; they get data only from smdebug in "
            "AWS's images up to PyTorch 2.0",
            stacklevel=3,
        )
    _require_docker_in_local_mode(estimator, backend)
    before = estimator.profiler_config
    if backend == "agent":
        warn_of_old(AwsImage.of_estimator(estimator), stacklevel=3)
        _warn_of_missing_package(estimator)
        if before is not None and config_request(before).keys() - _SDK_DEFAULTS:
            warnings.warn("the Estimator's profiler_config is replaced", stacklevel=3)
        values = {
            "environment": agent_environment(
                profiler_config,
                estimator.environment,
                s3_output_path=_output_path(estimator),
                kms_key_id=estimator.output_kms_key,
                network_isolation=bool(estimator.enable_network_isolation()),
                checkpoint_path=(estimator.checkpoint_local_path or CHECKPOINTS)
                if estimator.checkpoint_s3_uri
                else None,
            ),
            "disable_profiler": True,
            "profiler_config": None,
            "rules": others or None,
        }
        description = "the configuration is passed in the environment, and the managed service is switched off"
    else:
        require_managed_profiling(estimator.sagemaker_session.boto_region_name, estimator.instance_type)
        config = profiler_config if profiler_config is not None else ProfilerConfig()
        _check(config, rules)
        config = copy.copy(config)
        if before is not None and (replaced := _fill_config(config, before, estimator.output_path)):
            warnings.warn(f"the Estimator's profiler_config is replaced: {', '.join(replaced)}", stacklevel=3)
        if estimator.disable_profiler is True and config.disable_profiler is not True:
            warnings.warn(
                "the Estimator's disable_profiler=True is replaced: the profiler is switched on", stacklevel=3
            )
        environment = dict(estimator.environment or {})
        if getattr(config, "framework_profile_params", None) is not None:
            environment = switched_on(environment)
        values = {
            "environment": environment or None,
            "disable_profiler": config.disable_profiler is True,
            "profiler_config": config,
            "rules": [*others, *(copy.copy(rule) for rule in rules)] or None,
        }
        description = "the configuration is sent with the job's request"
    undo: list[Callable[[], object]] = [_set_attributes(estimator, values)]
    client = getattr(estimator.sagemaker_session, "sagemaker_client", None)
    if backend == "service" and hasattr(client, "meta"):
        undo.append(warn_of_tuning(client))
    return description, undo


def _warn_of_missing_package(estimator: Any) -> None:
    """Warn if a source folder does not install the agent, which AWS's images lack; an image of the user's own may have it."""
    folder = getattr(estimator, "source_dir", None)
    if not isinstance(folder, str) or not Path(folder).is_dir() or getattr(estimator, "image_uri", None):
        return
    added = [Path(path) for path in getattr(estimator, "dependencies", None) or () if isinstance(path, str)]
    if not may_install_profiler(Path(folder), *(path for path in added if path.name == "requirements.txt")):
        warnings.warn(
            f"the agent is not installed by {folder}, and AWS's images lack it: {INSTALL} there", stacklevel=4
        )


_SDK_DEFAULTS = {"S3OutputPath", "DisableProfiler"}  # what an Estimator sets by itself


def _fill_config(config: Any, own: Any, output_path: Any) -> list[str]:
    """Give a ProfilerConfig what only the job's own has, and return the parts of it that it replaces."""
    replaced = _replaced(config_request(own), config_request(config), output_path)
    if config.disable_profiler is not True:
        for name in ("s3_output_path", "system_monitor_interval_millis"):
            if getattr(config, name) is None:
                setattr(config, name, getattr(own, name))
        if "ProfilingParameters" not in config_request(config):
            for name in ("framework_profile_params", "profile_params"):
                setattr(config, name, getattr(own, name, None))
    return replaced


def _replaced(own: Mapping[str, Any], attached: Mapping[str, Any], output_path: Any) -> list[str]:
    """Return the names in a job's own configuration whose values an attached configuration replaces, without defaults."""
    if attached.get("DisableProfiler") is True:
        return sorted(own.keys() - _SDK_DEFAULTS)
    defaults = {"S3OutputPath": output_path, "DisableProfiler": False}
    return [name for name, value in own.items() if attached.get(name, value) != value and value != defaults.get(name)]


def _set_attributes(target: object, values: dict[str, Any]) -> Callable[[], None]:
    """Set attributes and return a function that restores them."""
    before = {name: getattr(target, name) for name in values}

    def restore() -> None:
        for name, value in before.items():
            setattr(target, name, value)

    for name, value in values.items():
        setattr(target, name, value)
    return restore


def _check(config: Any, rules: Sequence[Any]) -> None:
    if not is_kind(config, ProfilerConfig):
        raise ConfigError(f"an Estimator takes a ProfilerConfig, not {type(config).__name__}")
    for rule in rules:
        if not is_kind(rule, ProfilerRule):
            raise ConfigError(f"rules must be ProfilerRule objects, not {type(rule).__name__}")
    request = {
        "ProfilerConfig": config_request(config),
        "ProfilerRuleConfigurations": [rule.to_profiler_rule_config_dict() for rule in rules],
    }
    require_accepted(request)


def _require_docker_in_local_mode(estimator: Any, backend: str) -> None:
    """Refuse the SDK's local mode where it cannot profile."""
    if estimator.instance_type not in LOCAL_MODES:
        return
    if shutil.which("docker") is None:
        raise ConfigError(
            "local mode of the SDK needs Docker, which is not installed: run the job on 'sm-profiler local'"
        )
    if backend == "service":
        raise ConfigError("local mode of the SDK has no managed service: attach with backend='agent'")


def _output_path(estimator: Any) -> Any:
    """Return the S3 URI of the job's results, as the Estimator chooses it when it starts the job."""
    if estimator.output_path is not None:
        return estimator.output_path
    session = estimator.sagemaker_session
    parts = [session.default_bucket(), getattr(session, "default_bucket_prefix", None)]
    return "s3://" + "/".join(part for part in parts if part) + "/"


METHOD = "_create_training_job_args"


def attach_model_trainer(
    trainer: Any, profiler_config: Any, rules: Sequence[Any], backend: str
) -> tuple[str, list[Callable[[], object]]]:
    """Add the configuration to every request of a ModelTrainer.

    Returns:
        A description, and functions that undo it.
    """
    kind = type(trainer)
    if not callable(getattr(trainer, METHOD, None)):
        raise _unknown(f"ModelTrainer has no {METHOD}")

    def build(self: Any, *arguments: Any, **keywords: Any) -> Any:
        parameters = getattr(kind, METHOD)(self, *arguments, **keywords)
        if not isinstance(parameters, dict) or not {"output_data_config", "OutputDataConfig"} & parameters.keys():
            raise _unknown(f"ModelTrainer.{METHOD} does not return a request")
        request = _Request(parameters, in_snake_case="OutputDataConfig" not in parameters)
        if backend == "agent":
            request.set("Environment", request.environment_with(profiler_config))
        else:
            _add_to_request(request, self, profiler_config, rules)
        return parameters

    # A subclass for this one instance, since a copy of the ModelTrainer would share a wrapped method and send the
    # original's requests.
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, METHOD: build}
    metaclass: Any = type(kind)  # pydantic's
    object.__setattr__(trainer, "__class__", metaclass(kind.__name__, (kind,), names))

    def restore() -> None:
        object.__setattr__(trainer, "__class__", kind)

    undo: list[Callable[[], object]] = [restore]
    session = getattr(getattr(trainer, "sagemaker_session", None), "boto_session", None)
    if hasattr(session, "events"):
        undo.append(warn_of_tuning_in(session))
    carrier = "environment" if backend == "agent" else "request"
    return f"the configuration is passed in the {carrier} of every job that this ModelTrainer starts", undo


@attrs.frozen
class _Request:
    """A request in one of two forms: boto3's, or snake_case with shapes. What is not set, or not an object, is None."""

    parameters: Any
    in_snake_case: bool = False

    def _name(self, name: str) -> str:
        return snake_case(name) if self.in_snake_case else name

    def get(self, name: str, inner: str = "") -> Any:
        """Return a parameter by its API name, or a member of it."""
        value = self.parameters.get(self._name(name))
        if inner:
            value = value.get(inner) if isinstance(value, Mapping) else getattr(value, self._name(inner), None)
        return None if type(value).__name__ == "Unassigned" else value

    def set(self, name: str, value: Any) -> None:
        """Set a parameter by its API name."""
        self.parameters[self._name(name)] = value

    def warn_of_image(self) -> None:
        """Warn if the hook does not support what the job's image has."""
        warn_of_old(AwsImage.named(self.get("AlgorithmSpecification", "TrainingImage")), stacklevel=4)

    def environment_with(self, profiler_config: Any, limit: int = MAX_VARIABLES) -> dict[str, Any]:
        """Return the job's environment with the profiler's variables."""
        self.warn_of_image()
        checkpoints = self.get("CheckpointConfig", "LocalPath") or CHECKPOINTS
        return agent_environment(
            profiler_config,
            self.get("Environment"),
            s3_output_path=self.get("OutputDataConfig", "S3OutputPath"),
            kms_key_id=self.get("OutputDataConfig", "KmsKeyId"),
            network_isolation=self.get("EnableNetworkIsolation") is True,
            checkpoint_path=checkpoints if self.get("CheckpointConfig") else None,
            max_variables=limit,
        )


def _add_to_request(request: _Request, trainer: Any, profiler_config: Any, rules: Sequence[Any]) -> None:
    session = getattr(trainer.sagemaker_session, "boto_session", None)
    require_managed_profiling(getattr(session, "region_name", None), request.get("ResourceConfig", "InstanceType"))
    added = build_request(
        profiler_config, rules, session=session, s3_output_path=request.get("OutputDataConfig", "S3OutputPath")
    )
    if "ProfilingParameters" in added["ProfilerConfig"]:
        request.warn_of_image()
        request.set("Environment", switched_on(request.get("Environment")))
    request.parameters.update(request_to_shapes(added) if request.in_snake_case else added)


def _unknown(what: str) -> ConfigError:
    return ConfigError(
        f"{what} in SageMaker SDK {sdk_version()}: attach works with {TESTED}; use TrainingJob.create(**to_shapes(…))"
    )


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
    makers = list(kept.values()) if isinstance(kept, dict) else [kept]  # a single client before 3.27
    return [
        maker.sagemaker_client
        for maker in makers
        if maker is not None and getattr(maker, "session", session) is session
    ]


def warn_of_tuning(client: Any) -> Callable[[], object]:
    """Warn when a client creates a tuning job, whose trials the service backend cannot profile; return what ends that."""
    return _on(_TUNING, lambda: [client.meta.events], _tuning_is_not_profiled, _TUNING_ID)


def warn_of_tuning_in(session: Any) -> Callable[[], object]:
    """Warn when a session creates a tuning job from a ModelTrainer, of which a tuner of SDK v3 reads the attributes only."""

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
            return {**params, "Environment": _Request(params).environment_with(self.profiler_config)}
        request = _Request(params)
        output = request.get("OutputDataConfig", "S3OutputPath")
        require_managed_profiling(self.region, request.get("ResourceConfig", "InstanceType"))
        own = params.get("ProfilerConfig")
        if own is not None and not isinstance(own, Mapping):
            return params  # botocore reports it
        own = own or {}
        added = build_request(
            self.profiler_config,
            self.rules,
            region=self.region,
            session=self.session,
            s3_output_path=own.get("S3OutputPath", output),
        )
        if replaced := _replaced(own, added["ProfilerConfig"], output):
            logger.warning(
                "sm-profiler: the request's own ProfilerConfig has %s: replaced by the attached configuration",
                ", ".join(map(str, replaced)),
            )
        if added["ProfilerConfig"].get("DisableProfiler") is not True:
            added["ProfilerConfig"] = {**own, **added["ProfilerConfig"]}
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
        if own or theirs:
            require_accepted(changed)
        if "ProfilingParameters" in added["ProfilerConfig"]:
            request.warn_of_image()
            environment = params.get("Environment")
            if environment is None or isinstance(environment, Mapping):  # botocore reports anything else
                changed["Environment"] = switched_on(environment)
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
        environment = _Request(definition).environment_with(self.profiler_config, MAX_VARIABLES_TUNING)
        return {**definition, "Environment": environment}


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

    def __enter__(self) -> Attachment:  # Self came with Python 3.11
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
    require_right(config)
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
