"""Parameters of rules: attrs fields that accept strings and report a bad value in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import attrs

from sm_profiler.errors import ConfigError

MIN_INTERVAL_US = 100_000
MAX_INTERVAL_US = 100 * 365 * 86_400_000_000  # a longer one is one window anyway
_OF_SERVICE = "default of the service"
P = TypeVar("P", bound=attrs.AttrsInstance)


def as_number(value: object) -> object:
    """Convert a string, as the API carries all values, to a number; leave anything else to the validator."""
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return value
        return int(number) if number.is_integer() and "." not in value and "e" not in value.lower() else number
    return value


def _check_number(field: attrs.Attribute[Any], value: object) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an int above the largest float
        pass
    raise ConfigError(f"{field.name} must be a number, not {str(value)[:60]!r}")


def _is_percentile(field: attrs.Attribute[Any], value: object) -> None:
    if not 0 <= _check_number(field, value) <= 100:  # percent
        raise ConfigError(f"{field.name} must be a valid percentile!")


def _is_positive(field: attrs.Attribute[Any], value: object) -> None:
    if _check_number(field, value) <= 0:
        raise ConfigError(f"{field.name} must be a positive integer!")


def _is_whole(field: attrs.Attribute[Any], value: object) -> None:
    if not _check_number(field, value).is_integer():
        raise ConfigError(f"{field.name} must be a positive integer!")


def _is_count(field: attrs.Attribute[Any], value: object) -> None:
    _is_positive(field, value)
    _is_whole(field, value)


def _is_whole_length(field: attrs.Attribute[Any], value: object) -> None:
    _is_whole(field, value)
    if _check_number(field, value) < 0:
        raise ConfigError(f"{field.name} must not be negative")


def _as_count(value: object) -> object:
    number = as_number(value)
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _as_text(value: object) -> object:
    return None if value is None or (isinstance(value, str) and value in {"", "None"}) else value


def _is_text(field: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{field.name} must be a string, not {str(value)[:60]!r}")


Check: TypeAlias = "Callable[[attrs.Attribute[Any], object], object]"


def _field(
    default: object, converter: Callable[[object], object], check: Check, in_service: Check, of_service: object = None
) -> Any:
    metadata = {None: check, "service": in_service, _OF_SERVICE: default if of_service is None else of_service}
    return attrs.field(default=default, converter=converter, metadata=metadata)


def percentile(default: float) -> Any:
    """Declare a field for a percentage, 0 to 100."""
    return _field(default, as_number, _is_percentile, _check_number)


def positive(default: float, *, of_service: float | None = None) -> Any:
    """Declare a field for a number above zero; the service may have had another default."""
    return _field(default, as_number, _is_positive, _check_number, of_service)


def count(default: int) -> Any:
    """Declare a field for a whole number above zero."""
    return _field(default, _as_count, _is_count, _is_whole)


def length(default: int) -> Any:
    """Declare a field for a number of latest values, above zero; for the service, zero means all values."""
    return _field(default, _as_count, _is_count, _is_whole_length)


def text(default: str | None = None) -> Any:
    """Declare a field for a text or None."""
    return _field(default, _as_text, _is_text, _is_text)


def interval(value: object) -> int:
    """Convert a length of time in microseconds.

    Raises:
        ConfigError: it is not a whole number, or shorter than a sampling interval.
    """
    number = _as_count(value)
    if isinstance(number, bool) or not isinstance(number, int) or number <= 0:
        raise ConfigError("scan_interval_us must be a positive integer!")
    if number < MIN_INTERVAL_US:
        raise ConfigError(f"scan_interval_us must be at least {MIN_INTERVAL_US}, the shortest sampling interval")
    return min(number, MAX_INTERVAL_US)


def build(kind: type[P], rule: str, values: Mapping[str, object], compat: str | None = None) -> P:
    """Build the parameters of a rule.

    Args:
        kind: attrs class with the fields that this module declares.
        rule: name for messages.
        values: what was given; strings are converted.
        compat: "service" accepts numbers outside a parameter's range, as the service's container did: the SDK refused
            them before.

    Raises:
        ConfigError: an unknown name or a bad value; one line with the rule's name.
    """
    fields = attrs.fields(kind)
    known = {field.name for field in fields}
    unknown = [name for name in values if name not in known]
    if unknown:
        offered = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"{rule} has no parameter {unknown[0]!r}; it has: {offered}")
    if compat is not None:
        values = {**{field.name: field.metadata[_OF_SERVICE] for field in fields}, **values}
    built = kind(**values)
    try:
        for field in fields:
            field.metadata[compat](field, getattr(built, field.name))
    except ConfigError as error:
        raise ConfigError(f"{rule}: {error}") from None
    return built
