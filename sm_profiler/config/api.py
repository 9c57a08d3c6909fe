"""Names and limits of the SageMaker API's `ProfilerConfig`, and the decoding of its JSON and of the notation in it.

All other packages take them from here. Keys are matched in any case, as the managed service does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from sm_profiler import settings
from sm_profiler.errors import ConfigError
from sm_profiler.printable import cut
from sm_profiler.settings import CONFIG

INTERVALS_MS = (100, 200, 500, 1000, 5000, 60000)
MAX_INTERVAL_MS = 24 * 3600 * 1000  # of a configuration that did not pass the API
MAX_PARAMETERS = 20
MAX_PARAMETER_LENGTH = 256
MAX_RULES = 20
MAX_VARIABLES = 100
MAX_VARIABLES_TUNING = 48  # of a tuning job's trials
MAX_VARIABLE_LENGTH = 512

_NAMES = {
    group: tuple(key.name for key in settings.CONFIG_KEYS if key.group == group)
    for group in (settings.TOP, settings.PARAMETERS, settings.WINDOW)
}
# an extension that the API rejects; only the agent backend carries it
KMS_KEY = "KmsKeyId"
CONFIG_KEYS = tuple(name for name in _NAMES[settings.TOP] if name != KMS_KEY)
HOOK_PARAMETERS, METRICS_KEYS = _NAMES[settings.PARAMETERS], _NAMES[settings.WINDOW]
# SageMaker Profiler, the service's other profiler, is recognized by this parameter
CPU_PROFILING = "CPUProfilingDuration"
PARAMETER_KEYS = (*HOOK_PARAMETERS, CPU_PROFILING, "SMPFileRotationSecs")

# SDK v2.257's PROFILER_UNSUPPORTED_REGIONS
UNSUPPORTED_REGIONS = frozenset((
    "us-iso-east-1", "us-isob-east-1", "ap-southeast-3", "ap-southeast-4", "eu-south-2", "me-central-1", "ap-south-2",
    "eu-central-2", "us-gov-east-1",
))  # fmt: skip

# S3's rules; uppercase letters and underscores are those of buckets of before 2018, which not every client can address
_BUCKET = r"(?!\d+\.\d+\.\d+\.\d+(?:/|\Z)|xn--|sthree-)[a-z0-9](?:(?!\.\.)[a-z0-9.-]){0,61}(?<![.-])"
_ACCESS_POINT = r"arn:[^/\s]+[:/][^/\s]+"

Value: TypeAlias = str | int | float | bool | None
MAX_LENGTH = 4096  # characters; far longer than any real config

_OPEN = re.compile(r"\s*\{")
_SPACE = re.compile(r"\s*")
_END = re.compile(r"\s*(?:,\s*)?\}\s*\Z")
_KEY = r"""\s*(["'])([A-Za-z_]\w*)\1\s*:\s*"""
_FIRST_KEY = re.compile(_KEY)
_NEXT_KEY = re.compile("," + _KEY)
_WORD = re.compile(r"[^\s,{}\"']+")
_QUOTE_OR_COMMA = re.compile("[\"',]")
_INTEGER = re.compile(r"[+-]?[0-9]+(?:_[0-9]+)*\Z")
_WORDS: dict[str, bool | float | None] = {
    "none": None,
    "null": None,
    "true": True,
    "false": False,
    "inf": float("inf"),
    "+inf": float("inf"),
    "-inf": float("-inf"),
    "infinity": float("inf"),
    "nan": float("nan"),
}

_NOTHING = object()


def may_exist(uri: str) -> bool:
    """Return whether a bucket or an access point can have the name in an s3:// URI."""
    # compiled when it is needed: each training process imports this
    return re.match(rf"s3://(?:{_BUCKET}|{_ACCESS_POINT})(?:/|\Z)", uri) is not None


def canonical(given: Mapping[Any, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a copy whose keys have the case of `names`; keys that are not among them stay as they are."""
    known = {name.lower(): name for name in names}
    return {known.get(str(key).lower(), str(key)): value for key, value in given.items()}


def decode_config(source: object) -> dict[str, Any]:
    """Return a `ProfilerConfig` with its keys in the API's case.

    Args:
        source: the object or its JSON text. If it has no key of a `ProfilerConfig` but a key `ProfilerConfig`, as a
            CreateTrainingJob request or a DescribeTrainingJob answer has, its value is taken.

    Raises:
        ConfigError: the source is not a JSON object.
    """
    if isinstance(source, (str, bytes)):
        source = _parse_json(source)
    if not isinstance(source, Mapping):
        raise ConfigError(f"the profiler configuration must be a JSON object, not {type(source).__name__}")
    fields = canonical(source, (*CONFIG_KEYS, KMS_KEY, "ProfilerConfig"))
    inner = fields.get("ProfilerConfig")
    if isinstance(inner, Mapping) and not fields.keys() & {*CONFIG_KEYS}:
        return canonical(inner, (*CONFIG_KEYS, KMS_KEY))
    return fields


def _parse_json(text: str | bytes) -> object:
    import json  # keeps `import sm_profiler` quick

    try:
        return json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff"))
    except ValueError as error:
        raise ConfigError(f"the profiler configuration is not JSON: {error}") from None
    except RecursionError:
        raise ConfigError("the profiler configuration is nested too deeply") from None


def shown(value: object, most: int = 80) -> str:
    """Return a value's representation for a message, shortened."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or of levels
        text = f"<{type(value).__name__}>"
    return cut(text, most)


def interval_problem(interval: object) -> str | None:
    """Return why the API rejects an interval of the system metrics, or None if it accepts it."""
    if isinstance(interval, (int, float)) and interval not in INTERVALS_MS:
        allowed = ", ".join(map(str, INTERVALS_MS))
        return f"ProfilingIntervalInMilliseconds: {shown(interval)} is not one of {allowed}"
    return None


def rule_problems(disabled: object, rules: Sequence[object], existing: Collection[str] = ()) -> list[str]:
    """Return what the API rejects in a job's rules beyond its service model."""
    problems = []
    if rules and disabled is True:
        problems.append("profiler rules cannot be used while DisableProfiler is true")
    names = [rule.get("RuleConfigurationName") for rule in rules if isinstance(rule, Mapping)]
    counts = Counter([*existing, *(name for name in names if isinstance(name, str))])
    repeated = sorted(name for name, number in counts.items() if number > 1)
    return problems + [f"two rules are named {name}: give one of them another name" for name in repeated]


def environment_for(text: str) -> dict[str, str]:
    """Return the variables that carry a configuration: `SM_PROFILER_CONFIG`, or `SM_PROFILER_CONFIG_0`, `_1` and so on.

    Args:
        text: the configuration as JSON, a path or an `s3://` URI.

    Raises:
        ConfigError: the text is longer than the variables of one job can hold.
    """
    if len(text) <= MAX_VARIABLE_LENGTH:
        return {CONFIG.name: text}
    parts = [text[at : at + MAX_VARIABLE_LENGTH] for at in range(0, len(text), MAX_VARIABLE_LENGTH)]
    if len(parts) >= MAX_VARIABLES:
        raise ConfigError(f"the profiler configuration is too long for a job's environment: {len(text)} characters")
    return {f"{CONFIG.name}_{number}": part for number, part in enumerate(parts)}


def config_from_environment(environment: Mapping[str, str]) -> str | None:
    """Return the configuration in an environment: JSON text, a path or an `s3://` URI; None if it has none."""
    whole = CONFIG.text(environment)
    if whole:
        return whole
    parts: list[str] = []
    while (part := environment.get(f"{CONFIG.name}_{len(parts)}")) is not None:
        parts.append(part)
    return "".join(parts) or None


# The notation of one metrics config in a request, such as `{"StartStep": 5, "NumSteps": 1, }`. It resembles JSON, but has
# a trailing comma, Python's None and inf, and regular expressions whose quotes and backslashes are not escaped. It is
# parsed in one pass, never evaluated.


def format_metrics(config: Mapping[str, object]) -> str:
    """Write a metrics config as the SDK does, with a trailing comma and without escapes."""
    return "{" + "".join(f"{_quoted(key)}: {_quoted(value)}, " for key, value in config.items()) + "}"


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value}"


def parse_metrics(text: str) -> dict[str, Value]:
    """Parse a metrics config. Keys keep their case, strings are taken literally.

    A string ends at the first quote after which the rest can be parsed and the next key is new.

    Raises:
        ConfigError: the text is not in this notation.
    """
    if len(text) > MAX_LENGTH:
        raise ConfigError(f"longer than {MAX_LENGTH} characters")
    opening = _OPEN.match(text)
    if opening is None:
        raise ConfigError(f"expected {{…}}, found {shown(text)}")
    if _END.match(text, opening.end()):
        return {}
    parsed = _Scan(text).pairs(_FIRST_KEY.match(text, opening.end()))
    if parsed is None:
        raise ConfigError(f"cannot be parsed: {shown(text)}")
    return parsed


class _Scan:
    """Positions at which a value may end, found from right to left so that parsing never has to backtrack.

    Attributes:
        keys: position of a comma → the key after it, if the text can be parsed from there on.
        closing: position of a quote → the next quote of its kind that may end a string.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.keys: dict[int, re.Match[str]] = {}
        self.closing: dict[int, int | None] = {}
        nearest: dict[str, int | None] = {}
        for at in reversed([found.start() for found in _QUOTE_OR_COMMA.finditer(text)]):
            mark = text[at]
            if mark == ",":
                key = _NEXT_KEY.match(text, at)
                if key is not None and self._can_start_value(key.end()):
                    self.keys[at] = key
            else:
                self.closing[at] = nearest.get(mark)
                if self._can_end_value(at + 1):
                    nearest[mark] = at

    def _can_end_value(self, at: int) -> bool:
        return self._next_key(at) is not None or _END.match(self.text, at) is not None

    def _can_start_value(self, at: int) -> bool:
        if at in self.closing:
            return self.closing[at] is not None
        word = _WORD.match(self.text, at)
        return word is not None and _literal(word[0]) is not _NOTHING and self._can_end_value(word.end())

    def _next_key(self, at: int) -> re.Match[str] | None:
        space = _SPACE.match(self.text, at)
        return self.keys.get(space.end()) if space is not None else None

    def pairs(self, key: re.Match[str] | None) -> dict[str, Value] | None:
        """Return the pairs from a key to the closing brace, or None if they cannot be parsed."""
        found: dict[str, Value] = {}
        seen: set[str] = set()
        while key is not None and self._can_start_value(key.end()):
            seen.add(key[2].lower())
            at = key.end()
            end, following = self._value_end(at, seen)
            if end is None:
                return None
            found[key[2]] = self.text[at + 1 : end - 1] if at in self.closing else _literal(self.text[at:end])  # type: ignore[assignment] # not the sentinel
            if following is None:
                return found
            key = following
        return None

    def _value_end(self, at: int, seen: set[str]) -> tuple[int | None, re.Match[str] | None]:
        """Return the end of the value at a position, and the next key; None if the closing brace follows."""
        if at not in self.closing:
            word = _WORD.match(self.text, at)
            end = word.end() if word is not None else at
            following = self._next_key(end)
            return (None if following is not None and following[2].lower() in seen else end), following
        quote = self.closing[at]
        while quote is not None:
            following = self._next_key(quote + 1)
            if following is None or following[2].lower() not in seen:
                return quote + 1, following
            quote = self.closing[quote]
        return None, None


def _literal(word: str) -> object:
    """Return None, a boolean, an int or a float; the sentinel if the word is none of these."""
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        return int(word) if _INTEGER.match(word) else float(word)
    except ValueError:
        return _NOTHING
