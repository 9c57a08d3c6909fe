"""Convert a configuration and rules to boto3's keyword arguments and to SDK v3's shapes.

As an SDK v2 Estimator does, images of rules are resolved, and local sources of rules are uploaded.
"""

from __future__ import annotations

import ast
import os
import re
import textwrap
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sm_profiler.config.api import UNSUPPORTED_REGIONS, interval_problem, rule_problems, shown
from sm_profiler.debugger import ProfilerConfig
from sm_profiler.debugger.debugger import (
    DEFAULT_IMAGE,
    DETAILED,
    check_parameters,
    get_rule_container_image_uri,
    registered_image,
)
from sm_profiler.errors import ConfigError
from sm_profiler.printable import printable
from sm_profiler.settings import KMS_KEY


def check_request(operation: str, params: Mapping[str, Any], *, only: Collection[str] | None = None) -> list[str]:
    """Return the problems of a request, one line each. Pipeline variables are not checked.

    Args:
        operation: name of the operation, such as `CreateTrainingJob`.
        params: parameters by their API names.
        only: check only these top-level parameters, and not whether required parameters are missing.

    Raises:
        ConfigError: botocore is not installed, or has no such operation.
    """
    shape = _operation(operation)
    if only is not None:
        return [
            problem
            for name in only
            if name in shape.members and params.get(name) is not None
            for problem in _problems(shape.members[name], params[name], name)
        ]
    return list(_problems(shape, params, ""))


@cache
def _operation(name: str) -> Any:
    try:
        from botocore.exceptions import UnknownServiceError  # optional dependency
        from botocore.loaders import Loader
        from botocore.model import OperationNotFoundError, ServiceModel
    except ModuleNotFoundError:
        raise ConfigError("checking a request needs botocore: pip install 'sm-profiler[aws]'") from None
    try:
        model = ServiceModel(Loader().load_service_model("sagemaker", "service-2"))
        return model.operation_model(name).input_shape
    except (UnknownServiceError, OperationNotFoundError) as error:
        raise ConfigError(f"this version of botocore has no SageMaker operation {name}: {error}") from None


def is_pipeline_variable(value: object) -> bool:
    """Return True for a placeholder in a SageMaker pipeline (SDK v2 or v3)."""
    return any(base.__name__ == "PipelineVariable" for base in type(value).__mro__)


def _problems(shape: Any, value: Any, path: str) -> Iterator[str]:
    if is_pipeline_variable(value):
        return
    kinds, check = _CHECKS.get(shape.type_name, ((), _nothing))
    if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
        yield f"{path or 'the request'}: expected {_NAMES.get(shape.type_name, shape.type_name)}, found {shown(value, 60)}"
        return
    yield from check(shape, value, path)


def _structure(shape: Any, value: Mapping[str, Any], path: str) -> Iterator[str]:
    prefix = f"{path}." if path else ""
    for name in shape.required_members:
        if value.get(name) is None:
            yield f"{prefix}{name}: required"
    for name, member in value.items():
        if name not in shape.members:
            yield f"{prefix}{name}: unknown"
        elif member is not None:
            yield from _problems(shape.members[name], member, f"{prefix}{name}")


def _list(shape: Any, value: Sequence[Any], path: str) -> Iterator[str]:
    yield from _bounds(shape, len(value), path, "entries")
    for number, member in enumerate(value):
        yield from _problems(shape.member, member, f"{path}[{number}]")


def _map(shape: Any, value: Mapping[str, Any], path: str) -> Iterator[str]:
    yield from _bounds(shape, len(value), path, "entries")
    for key, member in value.items():
        yield from _problems(shape.key, key, f"{path} key {shown(key, 60)}")
        yield from _problems(shape.value, member, f"{path}.{key}")


def _string(shape: Any, value: str, path: str) -> Iterator[str]:
    bounds = list(_bounds(shape, len(value), path, "characters"))
    yield from bounds
    if shape.enum and value not in shape.enum:
        some = ", ".join(shape.enum[:8]) + (", …" if len(shape.enum) > 8 else "")  # fits one line
        yield f"{path}: {shown(value, 60)} is not one of {some}"
    pattern = shape.metadata.get("pattern")
    if pattern and not bounds and not _matches(pattern, value):  # a pattern may take long on a long value
        yield f"{path}: {shown(value, 60)} does not match {pattern}"


def _number(shape: Any, value: float, path: str) -> Iterator[str]:
    yield from _bounds(shape, value, path, "")


def _nothing(_shape: Any, _value: Any, _path: str) -> Iterator[str]:
    return iter(())


def _bounds(shape: Any, size: float, path: str, unit: str) -> Iterator[str]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if most is not None and size > most:
        yield f"{path}: {shown(size, 60)} {unit}".rstrip() + f", at most {most} are accepted"
    if least is not None and size < least:
        yield f"{path}: {shown(size, 60)} {unit}".rstrip() + f", at least {least} are needed"


@cache
def _pattern(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:  # the model's patterns are Java's, and a few are invalid in Python
        return None


def _matches(pattern: str, value: str) -> bool:
    compiled = _pattern(pattern)
    return compiled is None or compiled.fullmatch(value) is not None


_Check = Callable[[Any, Any, str], Iterator[str]]
_CHECKS: dict[str, tuple[tuple[type, ...], _Check]] = {
    "structure": ((Mapping,), _structure),
    "list": ((list, tuple), _list),
    "map": ((Mapping,), _map),
    "string": ((str,), _string),
    "integer": ((int,), _number),
    "long": ((int,), _number),
    "float": ((int, float), _number),
    "double": ((int, float), _number),
    "boolean": ((bool,), _nothing),
}
_NAMES = {
    "structure": "an object",
    "map": "an object",
    "list": "a list",
    "string": "a string",
    "boolean": "true or false",
    "integer": "an integer",
    "long": "an integer",
}


def rule_request(rule: Any, region: str | None, session: Any, s3_output_path: str | None) -> dict[str, Any]:
    """Return a rule's entry in the request's `ProfilerRuleConfigurations`; the rule is not changed."""
    request: dict[str, Any] = dict(rule.to_profiler_rule_config_dict())
    if request["RuleEvaluatorImage"] == DEFAULT_IMAGE:
        _resolve_image(request, region)
    parameters = request.get("RuleParameters") or {}
    check_parameters(request["RuleConfigurationName"], parameters, request["RuleEvaluatorImage"])
    source = parameters.get("source_s3_uri")
    if isinstance(source, str) and not source.startswith("s3://"):
        if isinstance(wanted := parameters.get("rule_to_invoke"), str):
            check_class(local_source(source, request["RuleConfigurationName"]), wanted)
        uploaded = _upload(source, request["RuleConfigurationName"], session, s3_output_path)
        request["RuleParameters"] = {**parameters, "source_s3_uri": uploaded}
    return request


def _resolve_image(request: dict[str, Any], region: str | None) -> None:
    name = request["RuleConfigurationName"]
    detailed = isinstance(name, str) and name.startswith(DETAILED)
    own = None if detailed else registered_image(region)
    if own:
        request["RuleEvaluatorImage"] = own
        return
    if not region:
        raise ConfigError(
            f"rule {name}: its image depends on the region: pass region=, or register an image with "
            "SM_PROFILER_RULE_IMAGE"
        )
    try:
        request["RuleEvaluatorImage"] = get_rule_container_image_uri(name, region)
    except ConfigError:
        raise
    except ValueError as error:  # the SDK lists no image for the region
        if unknown := _unknown_region(region):
            raise ConfigError(f"rule {name}: {unknown}") from None
        reason = textwrap.shorten(str(error), 120, placeholder=" …")
        raise ConfigError(f"rule {name}: AWS has no rule image for {region} ({reason})") from None
    if not detailed:  # AWS chooses the machines of its rules
        request.pop("InstanceType", None)
        request.pop("VolumeSizeInGB", None)


def _unknown_region(region: object) -> str:
    try:
        from sm_profiler.storage.s3 import unknown_region  # loads boto3, an extra
    except ImportError:
        return ""
    return unknown_region(str(region))


def _upload(source: str, name: str, session: Any, s3_output_path: str | None) -> str:
    """Upload a local rule source and return its S3 URI."""
    path = local_source(source, name)
    if session is None:
        raise ConfigError(f"rule {name}: its source {source} is a local file: pass session=, or an s3:// URI")
    with _upload_errors(source, name):
        bucket, prefix = _destination(session, s3_output_path)
        uri = source_uri(f"s3://{bucket}/{prefix}", name, path)
        upload_source(path, uri, name, session.client("s3"))
    return uri


def local_source(source: str, name: str) -> Path:
    """Return the path of a local rule source."""
    path = Path(source.removeprefix("file://"))
    try:
        exists = path.is_file()
    except OSError:  # for example a name that is too long
        exists = False
    if not exists:
        raise ConfigError(f"rule {name}: its source {source} is neither an S3 URI nor a local file")
    return path


def check_class(path: Path, name: str, parameters: Collection[str] = ()) -> None:
    """Check that a file can define a rule's class, and that its constructor takes the parameters, without running it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"rule {name}: {path} cannot be read as Python: {' '.join(str(error).split())}") from error
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    classes = [node.name for node in statements if isinstance(node, ast.ClassDef)]
    # a class may also be imported, or made by an assignment
    other = any(alias.name == "*" or name in {alias.asname, alias.name} for node in statements
                if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names)  # fmt: skip
    assigned = any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
    if name not in classes and not other and not assigned:
        raise ConfigError(f"{path} has no class {name}; it has: {', '.join(classes) or 'no class'}")
    defined = [node for node in statements if isinstance(node, ast.ClassDef) and node.name == name]
    made = [
        node for each in defined for node in each.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    if len(made) != 1 or made[0].args.kwarg:  # of a base, or any name
        return
    names = {argument.arg for argument in (*made[0].args.args[1:], *made[0].args.kwonlyargs)}
    for given in parameters:
        own = given[len(name) + 1 :] if given.lower().startswith(f"{name}_".lower()) else given
        if given not in names and own not in names:
            raise ConfigError(f"{name} has no parameter {own!r}; it has: {', '.join(sorted(names)) or 'none'}")


def source_uri(prefix: str, name: str, path: Path) -> str:
    """Return a new S3 URI under a prefix for a rule's source."""
    return f"{prefix.rstrip('/')}/{name}/{uuid.uuid4()}/{path.name}"


def upload_source(path: Path, uri: str, name: str, client: Any) -> None:
    """Upload a rule's source."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    kms_key = KMS_KEY.read()
    encrypted = {"ExtraArgs": {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key}} if kms_key else {}
    with _upload_errors(str(path), name):
        client.upload_file(str(path), bucket, key, **encrypted)


@contextmanager
def _upload_errors(source: str, name: str) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # boto3's errors and S3 transfer's have no common base
        line = " ".join(str(error).split())
        raise ConfigError(f"rule {name}: its source {source} could not be uploaded: {line}") from error


def _destination(session: Any, s3_output_path: str | None) -> tuple[str, str]:
    if s3_output_path and not is_pipeline_variable(s3_output_path):
        parts = urlsplit(s3_output_path)
        return parts.netloc, parts.path.strip("/")
    account = session.client("sts").get_caller_identity()["Account"]
    return f"sagemaker-{session.region_name}-{account}", ""


_KEYS = ("ProfilerConfig", "ProfilerRuleConfigurations")
_PARTS = {
    "FrameworkProfile": ": ProfilerConfig(framework_profile_params=…)",
    "Profiler": ": ProfilerConfig(profile_params=…)",
}


def to_request(
    profiler_config: Any = None,
    rules: Sequence[Any] | None = None,
    *,
    region: str | None = None,
    session: Any = None,
    s3_output_path: str | None = None,
) -> dict[str, Any]:
    """Return keyword arguments for boto3's `create_training_job(…, **to_request(…))` and `update_training_job`.

    The arguments are not changed.

    Args:
        profiler_config: a ProfilerConfig of this package or of the SDK, or the API's object; None records system metrics
            only.
        rules: ProfilerRule objects.
        region: region of the job; taken from the session or the environment by default.
        session: boto3 or SDK session, for the region and for uploading a local rule source.
        s3_output_path: S3 URI that the profile is stored under if the configuration has none.

    Returns:
        `ProfilerConfig`, and, if there are rules, `ProfilerRuleConfigurations`. A warning is issued if they have no S3 path,
        which only the request of an update can do without.

    Raises:
        ConfigError: the service would reject the request; the message lists all reasons in one line.
    """
    request = build_request(profiler_config, rules, region=region, session=session, s3_output_path=s3_output_path)
    warn_of_missing_path(request)
    return request


def build_request(
    profiler_config: Any,
    rules: Sequence[Any] | None,
    *,
    region: str | None = None,
    session: Any = None,
    s3_output_path: str | None = None,
) -> dict[str, Any]:
    """Return the arguments of `to_request`, which may lack an S3 path."""
    session = getattr(session, "boto_session", session)
    region = (
        region
        or getattr(session, "region_name", None)
        or os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
    )
    config = config_request(profiler_config, s3_output_path)
    if not config.get("DisableProfiler"):
        require_managed_profiling(region)
    output = config.get("S3OutputPath", s3_output_path)
    request: dict[str, Any] = {"ProfilerConfig": config}
    if rules := checked_rules(rules):
        request["ProfilerRuleConfigurations"] = [rule_request(rule, region, session, output) for rule in rules]
    require_accepted(request)
    require_right(config)
    return request


def warn_of_missing_path(request: Mapping[str, Any]) -> None:
    """Warn of a request whose profile has no place; to be called by a function that users call."""
    config = request["ProfilerConfig"]
    if config.get("DisableProfiler") is not True and config.get("S3OutputPath") is None:
        warnings.warn(
            "the request has no S3 path for the profile: pass s3_output_path=, usually that of the job's results, or set it "
            "in the ProfilerConfig (only an update of a running job needs none)",
            stacklevel=3,
        )


def config_request(profiler_config: Any, s3_output_path: Any = None) -> dict[str, Any]:
    """Return the API's `ProfilerConfig`, with the given path if the configuration has none."""
    if profiler_config is None:
        profiler_config = ProfilerConfig()
    if isinstance(profiler_config, type):
        kind = profiler_config.__name__
        raise ConfigError(f"profiler_config must be a ProfilerConfig object, not the class {kind}: {kind}(…)")
    if isinstance(profiler_config, Mapping):
        request = dict(profiler_config)
    else:
        try:
            request = dict(profiler_config._to_request_dict())  # the SDK's objects have no public method
        except AttributeError:
            kind = type(profiler_config).__name__
            hint = _PARTS.get(kind, "")
            raise ConfigError(f"profiler_config must be a ProfilerConfig, not {kind}{hint}") from None
    if isinstance(request.get("ProfilingParameters"), Mapping):
        request["ProfilingParameters"] = dict(request["ProfilingParameters"])
    if s3_output_path is not None and "S3OutputPath" not in request and request.get("DisableProfiler") is not True:
        request = {"S3OutputPath": s3_output_path, **request}
    return request


def checked_rules(rules: object) -> Sequence[Any]:
    """Return rules as a sequence."""
    if hasattr(rules, "to_profiler_rule_config_dict") and not isinstance(rules, type):
        raise ConfigError("rules must be a list of ProfilerRule objects, not one ProfilerRule: rules=[rule]")
    if rules is None:
        return ()
    if not isinstance(rules, (list, tuple)):
        raise ConfigError(f"rules must be a list of ProfilerRule objects, not {_name_of(rules)}")
    for rule in rules:
        if isinstance(rule, type) or not hasattr(rule, "to_profiler_rule_config_dict"):
            raise ConfigError(f"rules must be ProfilerRule objects, not {_name_of(rule)}")
    return rules


def _name_of(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def require_managed_profiling(region: object, instance_type: object = None) -> None:
    """Check that the managed service can profile in a region and on an instance type."""
    if isinstance(region, str) and region.lower() in UNSUPPORTED_REGIONS:
        raise ConfigError(f"SageMaker has no managed profiling in {region}: use attach(…, backend='agent')")
    if isinstance(instance_type, str) and instance_type.startswith(("ml.trn", "ml_trn")):
        raise ConfigError(f"SageMaker has no managed profiling on {instance_type}: use attach(…, backend='agent')")


def require_accepted(request: Mapping[str, Any]) -> None:
    """Check the profiler's part of a request against the API's model and its further constraints."""
    config = request.get("ProfilerConfig") or {}
    interval = interval_problem(config.get("ProfilingIntervalInMilliseconds"))
    problems = [interval] if interval is not None else []
    problems += rule_problems(config.get("DisableProfiler"), request.get("ProfilerRuleConfigurations") or [])
    problems += check_request("CreateTrainingJob", request, only=_KEYS)
    if problems:
        raise ConfigError(printable("the service would reject this: " + "; ".join(problems)))


def require_right(config: Mapping[str, Any]) -> None:
    """Check that a configuration has nothing that `ProfilerConfig.explain` calls wrong, before a job is paid for."""
    from sm_profiler.config.explaining import wrong_settings  # keeps the import quick

    if config.get("DisableProfiler") is True:
        return
    if problems := wrong_settings(_without_variables(config)):
        raise ConfigError(printable("the configuration is wrong: " + "; ".join(problems)))


def _without_variables(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without the values that are known only when a pipeline runs."""
    return {
        key: _without_variables(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if not is_pipeline_variable(value)
    }


TESTED = "3.27.0"


def to_shapes(
    profiler_config: Any = None,
    rules: Sequence[Any] | None = None,
    *,
    region: str | None = None,
    session: Any = None,
    s3_output_path: str | None = None,
) -> dict[str, Any]:
    """Return keyword arguments for SDK v3's `TrainingJob.create(…, **to_shapes(…))` and `TrainingJob.update`.

    Args:
        profiler_config: a ProfilerConfig of this package or of the SDK, or the API's object; None records system metrics
            only.
        rules: ProfilerRule objects.
        region: region of the job; taken from the session or the environment by default.
        session: boto3 or SDK session, for the region and for uploading a local rule source.
        s3_output_path: S3 URI that the profile is stored under if the configuration has none.

    Raises:
        ConfigError: the service would reject the request, or SDK v3 is not installed or incompatible.
    """
    request = build_request(profiler_config, rules, region=region, session=session, s3_output_path=s3_output_path)
    warn_of_missing_path(request)
    return request_to_shapes(request)


def request_to_shapes(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the profiler's part of a request as `profiler_config` and `profiler_rule_configurations`."""
    try:
        shapes = import_module("sagemaker.core.shapes")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "sagemaker":
            raise
        raise ConfigError(
            "shapes need the SageMaker SDK v3, which is not installed: pip install 'sagemaker>=3.27'"
        ) from None
    config = request["ProfilerConfig"]
    try:
        # one object that both create (ProfilerConfig) and update (ProfilerConfigForUpdate) accept
        kind = type("ProfilerConfig", (shapes.ProfilerConfig, shapes.ProfilerConfigForUpdate), {"__module__": __name__})
        converted: dict[str, Any] = {"profiler_config": kind(**_snake(config))}
        rules = request.get("ProfilerRuleConfigurations")
        if rules:
            converted["profiler_rule_configurations"] = [
                shapes.ProfilerRuleConfiguration(**_snake(rule)) for rule in rules
            ]
    except (AttributeError, TypeError, ValueError) as error:
        line = " ".join(str(error).split())
        raise ConfigError(
            f"the shapes of SDK {sdk_version()} differ from those of {TESTED}, the tested version: {line}"
        ) from error
    return converted


def sdk_version() -> str:
    """Return the installed SDK's version, for messages."""
    from importlib.metadata import PackageNotFoundError, version  # needed only for a message

    try:
        return version("sagemaker")
    except PackageNotFoundError:
        return "(unknown)"


def snake_case(name: str) -> str:
    """Return the name that SDK v3 has for a parameter of the API."""
    from botocore import xform_name  # boto3 comes with the SDK

    return str(xform_name(name))


def _snake(request: Mapping[str, Any]) -> dict[str, Any]:
    return {snake_case(key): value for key, value in request.items()}
