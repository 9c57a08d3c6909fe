"""Profiler rules, and the container images that evaluate them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from sm_profiler.debugger import rule_configs, sdk_compat
from sm_profiler.debugger.profiler_constants import (
    DETAIL_PROF_PROCESSING_DEFAULT_INSTANCE_TYPE,
    DETAIL_PROF_PROCESSING_DEFAULT_VOLUME_SIZE,
)
from sm_profiler.debugger.sdk_compat import SDK_NAMES, is_missing_sdk, sdk_name
from sm_profiler.errors import ConfigError
from sm_profiler.settings import RULE_IMAGE, read_file, settings_path

DEFAULT_IMAGE = "DEFAULT_RULE_EVALUATOR_IMAGE"
DETAILED = "DetailedProfilerProcessingJobConfig"
KEY = RULE_IMAGE.file_key

detailed_framework_name = "detailed-profiler"
# default for a rule with a registered image; AWS uses the same for its own
_OWN_IMAGE_INSTANCE, _OWN_IMAGE_VOLUME = "ml.t3.medium", 30
_NAME_LENGTH = 63


def registered_image(region: str | None, image_uri: str | None = None) -> str | None:
    """Return the registered rule image for a region, or None.

    It is taken from the argument, from `SM_PROFILER_RULE_IMAGE`, or from `rule_image` in the settings file, which is one
    URI or an object region → URI with `*` for all others. `{region}` in a URI is replaced by the region.

    Raises:
        ConfigError: the settings file cannot be read.
    """
    found: Any = image_uri or RULE_IMAGE.read() or read_file(settings_path()).get(KEY)
    if isinstance(found, dict):
        found = found.get(region or _region_of_environment()) or found.get("*")
    if not found:
        return None
    if not isinstance(found, str):
        raise ConfigError(f"{settings_path()}: {KEY} must be an image URI, or an object region → URI")
    if "{region}" not in found:
        return found
    known = region or _region_of_environment()
    return found.replace("{region}", known) if known else None


def _region_of_environment() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


__all__ = [
    "DetailedProfilerProcessingJobConfig",
    "ProfilerRule",
    "get_default_profiler_processing_job",
    "get_rule_container_image_uri",
    "rule_configs",
]


class DetailedProfilerProcessingJobConfig:
    """Base configuration of SageMaker Profiler's processing job, for `ProfilerRule.sagemaker`."""

    def __init__(self) -> None:
        self.rule_name = type(self).__name__
        self.rule_parameters = {"rule_to_invoke": "DetailedProfilerProcessing"}


def get_rule_container_image_uri(name: str | None, region: str, image_uri: str | None = None) -> str:
    """Return the image that evaluates a built-in rule in a region.

    Args:
        name: the rule's name; SageMaker Profiler's processing job has its own image.
        region: AWS region, such as `us-east-1`.
        image_uri: image to use. The default is `SM_PROFILER_RULE_IMAGE`, then `rule_image` in the settings file, then
            AWS's image according to the installed SageMaker SDK.

    Raises:
        ConfigError: no image is registered and no SDK is installed.
        ValueError: the SDK lists no image for that region.
    """
    detailed = name is not None and name.startswith(DETAILED)
    own = image_uri if detailed else registered_image(region, image_uri)
    if own:
        return own
    framework = detailed_framework_name if detailed else "debugger"
    for module in ("sagemaker.image_uris", "sagemaker.core.image_uris"):
        try:
            table = import_module(module)
        except ModuleNotFoundError as error:
            if is_missing_sdk(error):
                continue
            raise
        return str(table.retrieve(framework, region))
    raise ConfigError(
        "no rule image is registered: set SM_PROFILER_RULE_IMAGE (`sm-profiler deploy` builds an image), or install the "
        "SageMaker SDK to use AWS's image"
    )


def get_default_profiler_processing_job(
    instance_type: str | None = None, volume_size_in_gb: int | None = None
) -> ProfilerRule:
    """Return SageMaker Profiler's processing job as a rule, named `DetailedProfilerProcessingJobConfig-<time>`.

    Args:
        instance_type: instance type of the job; `ml.m5.4xlarge` by default.
        volume_size_in_gb: disk size; 128 by default.
    """
    config = DetailedProfilerProcessingJobConfig()
    now_ms = time.time_ns() // 1_000_000
    stamp = time.strftime("%Y-%m-%d-%H-%M-%S", time.gmtime(now_ms // 1000)) + f"-{now_ms % 1000:03d}"
    name = f"{config.rule_name[: _NAME_LENGTH - len(stamp) - 1]}-{stamp}"
    return ProfilerRule.sagemaker(config, name=name, instance_type=instance_type, volume_size_in_gb=volume_size_in_gb)


class ProfilerRule(sdk_compat.RuleBase):
    """A rule that evaluates a training job's profile, made by `ProfilerRule.sagemaker` or `ProfilerRule.custom`.

    Attributes:
        name: name of the rule in the job.
        image_uri: container image that evaluates it.
        instance_type: instance type that it runs on.
        container_local_output_path: folder in the rule's container that it writes to.
        s3_output_path: S3 URI that its output is uploaded to.
        volume_size_in_gb: disk size.
        rule_parameters: the rule's parameters.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; if an Estimator replaces the default image by AWS's, the registered image is set instead."""
        if name == "image_uri" and self.__dict__.get(name) == DEFAULT_IMAGE and _is_aws_image(value):
            value = registered_image(value.split(".")[3]) or value
        object.__setattr__(self, name, value)

    @classmethod
    def sagemaker(  # the SDK's signature
        cls,
        base_config: Any,
        name: str | None = None,
        container_local_output_path: str | None = None,
        s3_output_path: str | None = None,
        instance_type: str | None = None,
        volume_size_in_gb: int | None = None,
    ) -> ProfilerRule:
        """Return a built-in rule, such as `ProfilerRule.sagemaker(rule_configs.ProfilerReport())`.

        Args:
            base_config: configuration from `rule_configs`.
            name: name of the rule; the default is that of the base configuration.
            container_local_output_path: folder in the rule's container that it writes to.
            s3_output_path: S3 URI that its output is uploaded to.
            instance_type: instance type; AWS's own rules ignore it.
            volume_size_in_gb: disk size; AWS's own rules ignore it.
        """
        used_name = name or base_config.rule_name
        own_image = None
        if used_name.startswith(DETAILED):
            if volume_size_in_gb is None:
                volume_size_in_gb = DETAIL_PROF_PROCESSING_DEFAULT_VOLUME_SIZE
            if instance_type is None:
                instance_type = DETAIL_PROF_PROCESSING_DEFAULT_INSTANCE_TYPE
        else:
            own_image = registered_image(None)
        if own_image:
            instance_type = instance_type or _OWN_IMAGE_INSTANCE
            volume_size_in_gb = volume_size_in_gb or _OWN_IMAGE_VOLUME
        return cls(
            name=used_name,
            image_uri=own_image or DEFAULT_IMAGE,
            instance_type=instance_type,
            container_local_output_path=container_local_output_path,
            s3_output_path=s3_output_path,
            volume_size_in_gb=volume_size_in_gb,
            rule_parameters=base_config.rule_parameters,
        )

    @classmethod
    def custom(  # the SDK's signature
        cls,
        name: str,
        image_uri: str,
        instance_type: str,
        volume_size_in_gb: int,
        source: str | None = None,
        rule_to_invoke: str | None = None,
        container_local_output_path: str | None = None,
        s3_output_path: str | None = None,
        rule_parameters: dict[str, Any] | None = None,
    ) -> ProfilerRule:
        """Return a custom rule.

        Args:
            name: name of the rule.
            image_uri: container image that evaluates it.
            instance_type: instance type, such as `ml.m5.xlarge`.
            volume_size_in_gb: disk size.
            source: Python file that defines the rule, as an S3 URI or a local path.
            rule_to_invoke: name of the rule's class in that file.
            container_local_output_path: folder in the rule's container that it writes to.
            s3_output_path: S3 URI that its output is uploaded to.
            rule_parameters: the rule's parameters.

        Raises:
            ValueError: a source without a rule, or a rule without a source; a built-in rule, named by the parameter
                `rule_to_invoke`, does not have one of the other parameters.
        """
        parameters = cls._set_rule_parameters(source, rule_to_invoke, rule_parameters)
        check_parameters(name, parameters, image_uri)
        return cls(
            name=name,
            image_uri=image_uri,
            instance_type=instance_type,
            container_local_output_path=container_local_output_path,
            s3_output_path=s3_output_path,
            volume_size_in_gb=volume_size_in_gb,
            rule_parameters=parameters,
        )

    @classmethod
    def from_request(cls, request: Mapping[str, Any]) -> ProfilerRule:
        """Return the rule in one of the `ProfilerRuleConfigurations` of a request or a DescribeTrainingJob answer.

        Raises:
            ConfigError: the name or the image is missing, or the parameters are not an object.
        """
        try:
            name, image = request["RuleConfigurationName"], request["RuleEvaluatorImage"]
        except (KeyError, TypeError):
            raise ConfigError("a rule needs a RuleConfigurationName and a RuleEvaluatorImage") from None
        parameters = request.get("RuleParameters") or {}
        if not isinstance(parameters, Mapping):
            raise ConfigError(f"RuleParameters must be an object, not {type(parameters).__name__}")
        return cls(
            name=name,
            image_uri=image,
            instance_type=request.get("InstanceType"),
            container_local_output_path=request.get("LocalPath"),
            s3_output_path=request.get("S3OutputPath"),
            volume_size_in_gb=request.get("VolumeSizeInGB"),
            rule_parameters=dict(parameters),
        )

    def to_profiler_rule_config_dict(self) -> dict[str, Any]:
        """Return the entry for the request's `ProfilerRuleConfigurations`, with parameters as strings."""
        request = {"RuleConfigurationName": self.name, "RuleEvaluatorImage": self.image_uri}
        optional = {
            "InstanceType": self.instance_type,
            "VolumeSizeInGB": self.volume_size_in_gb,
            "LocalPath": self.container_local_output_path,
            "S3OutputPath": self.s3_output_path,
        }
        request.update({key: value for key, value in optional.items() if value})
        if self.rule_parameters:
            request["RuleParameters"] = {key: str(value) for key, value in self.rule_parameters.items()}
        return request


def check_parameters(name: object, parameters: Mapping[str, Any], image_uri: object) -> None:
    """Refuse parameters that a built-in rule does not have, and names that no rule of the registered image has.

    The rule's processing job would be paid for, and end with an error.

    Raises:
        ConfigError: the message names them all, and those that may be meant.
    """
    if "rule_to_invoke" in parameters:
        from sm_profiler.config.explaining import parameter_problems  # keeps the import quick

        ours = isinstance(image_uri, str) and image_uri in {DEFAULT_IMAGE, registered_image(_region_in(image_uri))}
        if problems := list(parameter_problems(parameters, everywhere=True, ours=ours)):
            raise ConfigError(f"rule {name}: {', '.join(problems)}")


def _region_in(image_uri: str) -> str | None:
    """Return the region in the address of an image in ECR."""
    found = re.search(r"\.dkr\.ecr\.([a-z0-9-]+)\.", image_uri)
    return found[1] if found else None


def _is_aws_image(value: object) -> bool:
    return isinstance(value, str) and ".dkr.ecr." in value and "/sagemaker-debugger-rules" in value


def __getattr__(name: str) -> Any:
    return sdk_name(name, __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *SDK_NAMES})
