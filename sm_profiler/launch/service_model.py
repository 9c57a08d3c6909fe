"""Validate requests against botocore's model of the SageMaker API before they are sent.

botocore itself checks types, required keys and minima, and leaves maxima, patterns and enumerations to the service.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from sm_profiler.config.api import shown
from sm_profiler.errors import ConfigError


def check_request(operation: str, params: Mapping[str, Any], *, only: Collection[str] | None = None) -> list[str]:
    """Return the problems of a request, one line each. Pipeline variables are not checked.

    Args:
        operation: name of the operation, such as `CreateTrainingJob`.
        params: parameters by their API names.
        only: check only these top-level parameters, and not whether required ones are missing.

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
