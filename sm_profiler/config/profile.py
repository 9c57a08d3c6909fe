"""A profile as data: what is collected, in which window, and its destination; read from the API's `ProfilerConfig` or a profilerconfig.json."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import attrs

from sm_profiler.config.api import (
    CONFIG_KEYS,
    CPU_PROFILING,
    HOOK_PARAMETERS,
    INTERVALS_MS,
    KMS_KEY,
    MAX_INTERVAL_MS,
    METRICS_KEYS,
    PARAMETER_KEYS,
    canonical,
    decode_config,
    interval_problem,
    parse_metrics,
    shown,
)
from sm_profiler.errors import ConfigError
from sm_profiler.printable import printable
from sm_profiler.settings import FAIL_THRESHOLD, INTERVAL, LOCAL_PATH, ROTATE_BYTES, ROTATE_SECONDS, Setting

PROFILERS = ("cprofile", "pyinstrument")
TIMERS = ("total_time", "cpu_time", "off_cpu_time", "default")

MAX_NAMED = 10  # unknown keys in a job's log
MAX_PATTERN = 256  # characters; the API accepts no longer parameters
MAX_NAME = 128  # characters of a name that are compared
MAX_CHOICES = 4  # repeats and alternatives of a pattern: each multiplies the ways in which `re` can try to match a name
_SINGLE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # an escape, or a set of characters
_REPEAT = re.compile(r"(?:[*+?]|\{[0-9]*,?[0-9]*\})[?+]?")

MAX_SUGGESTIONS = 50  # for unknown keys; each takes a fraction of a millisecond
_MAX_INTEGER = 2**63 - 1
_RULES_KEYS = {"profilerruleconfigurations", "profiler_rule_configurations"}  # next to the configuration, in any case


@attrs.frozen
class CollectorSpec:
    """Name, request key and default window (in steps) of one of the five collectors."""

    name: str
    wire: str
    start_step: int
    num_steps: int


COLLECTORS = {
    collector.name: collector
    for collector in (
        CollectorSpec("detailed", "DetailedProfilingConfig", 5, 1),
        CollectorSpec("dataloader", "DataloaderProfilingConfig", 7, 1),
        CollectorSpec("python", "PythonProfilingConfig", 9, 3),
        CollectorSpec("horovod", "HorovodProfilingConfig", 13, 1),
        CollectorSpec("smddp", "SMDataParallelProfilingConfig", 15, 1),
    )
}


@attrs.frozen
class CollectorConfig:
    """Window and options of one collector.

    Either the step fields or the time fields are set, never both.

    Attributes:
        start_step: first global step of the window, counted from 0.
        num_steps: length of the window in steps.
        start_time: start of the window in seconds since the epoch.
        duration: length of the window in seconds; may be infinite.
        metrics_regex: names that the dataloader collector keeps, matched from the start and ignoring case.
        profiler: `cprofile` or `pyinstrument` (Python collector).
        timer: `total_time`, `cpu_time`, `off_cpu_time`, or `default`, which rotates through the three.
        default: the window is the collector's default window.
    """

    start_step: int | None = None
    num_steps: int | None = None
    start_time: float | None = None
    duration: float | None = None
    metrics_regex: str = ".*"
    profiler: str = "cprofile"
    timer: str = "total_time"
    default: bool = False

    @property
    def by_time(self) -> bool:
        """True if the window is a range of time, not of steps."""
        return self.start_time is not None or self.duration is not None


@attrs.frozen
class Profile:
    """A parsed profiler configuration.

    Attributes:
        s3_output_path: S3 URI that the profile is uploaded to, or None.
        interval_ms: milliseconds between two samples of the system metrics.
        disabled: `DisableProfiler` is true.
        rotate_max_bytes: size at which a trace file is closed.
        rotate_close_seconds: age at which a trace file is closed.
        fail_threshold: number of failures to open a file after which the writer is switched off.
        collectors: `detailed`, `dataloader`, `python`, `horovod`, `smddp` → config; only those that are on.
        parameters: `ProfilingParameters` as given.
        problems: one line for each invalid field, starting with the field's name.
        unknown: keys that nothing reads, as `ProfilingParameters.Colour` → a suggestion; "" without one.
        off: reason why the hook stays off, in one line; empty if it is on.
        kms_key_id: KMS key for the agent's uploads (`KmsKeyId`, an extension of the API's keys), or None.
    """

    s3_output_path: str | None = None
    interval_ms: int = INTERVAL.default
    disabled: bool = False
    local_path: str = LOCAL_PATH.default
    rotate_max_bytes: int = ROTATE_BYTES.default
    rotate_close_seconds: float = ROTATE_SECONDS.default
    fail_threshold: int = FAIL_THRESHOLD.default
    collectors: dict[str, CollectorConfig] = attrs.field(factory=dict)
    parameters: dict[str, Any] = attrs.field(factory=dict)
    problems: list[str] = attrs.field(factory=list)
    off: str = ""
    kms_key_id: str | None = None
    unknown: dict[str, str] = attrs.field(factory=dict)

    @property
    def hook_on(self) -> bool:
        return not self.off

    @property
    def warnings(self) -> list[str]:
        """Lines for the job's log: the problems, and one that names the unknown keys."""
        if not self.unknown:
            return self.problems
        named = [f"{key}{hint and f' ({hint})'}" for key, hint in islice(self.unknown.items(), MAX_NAMED)]
        more = f" and {len(self.unknown) - MAX_NAMED} more" if len(self.unknown) > MAX_NAMED else ""
        return [*self.problems, f"unknown keys of the configuration are ignored: {', '.join(named)}{more}"]


class NamePattern:
    """A regular expression that is matched from the start of a name, ignoring case.

    It is matched on the training thread, and `re` backtracks: `(a+)+$` takes exponential time. So groups cannot be repeated,
    and the number of repeats and of groups with alternatives is limited.
    """

    def __init__(self, text: str) -> None:
        """Compile an expression in the syntax of `re`.

        Raises:
            ValueError: it is invalid, too long, or could take too long to match.
        """
        self.text = text
        if len(text) > MAX_PATTERN:
            raise ValueError(f"longer than {MAX_PATTERN} characters")
        try:
            compiled = re.compile(text, re.IGNORECASE)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"not a regular expression ({error})") from None
        if "(?#" in text:  # a comment may hide brackets from what follows
            raise ValueError("comments are not supported")
        if compiled.flags & re.VERBOSE:
            raise ValueError("the flag x is not supported")
        plain = _SINGLE.sub("x", text).replace("(?", "(")
        if re.search(r"\)[*+{]", plain):
            raise ValueError("a repeated group could take too long to match")
        if len(_REPEAT.findall(plain)) + (plain.count("(") if "|" in plain else 0) > MAX_CHOICES:
            raise ValueError(
                f"more than {MAX_CHOICES} repeats and groups with alternatives could take too long to match"
            )
        self._matches = lru_cache(maxsize=500)(lambda name: compiled.match(name) is not None)

    def matches(self, name: str) -> bool:
        """Return True if the start of a name matches; of a long name, the first 128 characters are compared."""
        return self._matches(name[:MAX_NAME])


def load_profile(source: Mapping[str, Any] | str | bytes) -> Profile:
    """Read a profiler configuration, its keys in any case.

    Args:
        source: the configuration, a CreateTrainingJob request or a DescribeTrainingJob answer that contains it, or the
            JSON text of either.

    Returns:
        The profile. Invalid fields are listed in `problems` and replaced by their defaults; an invalid collector is off.

    Raises:
        ConfigError: the source is not a JSON object.
    """
    given = decode_config(source)
    problems: list[str] = []
    if given and not given.keys() & {*CONFIG_KEYS, KMS_KEY}:
        problems.append(f"ProfilerConfig: has none of {', '.join(CONFIG_KEYS)}")
    disabled = _boolean("DisableProfiler", given.get("DisableProfiler"), problems)
    parameters = given.get("ProfilingParameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        problems.append(f"ProfilingParameters: expected an object, found {shown(parameters)}")
        parameters = None
    parameters = dict(parameters or {})
    fields = canonical(parameters, PARAMETER_KEYS)
    numbers = {
        "rotate_max_bytes": int(_positive(ROTATE_BYTES, fields, problems, whole=True)),
        "rotate_close_seconds": _positive(ROTATE_SECONDS, fields, problems),
        "fail_threshold": int(_positive(FAIL_THRESHOLD, fields, problems, whole=True)),
    }
    collectors, unknown = {}, list[tuple[str, Sequence[str]]]()
    for collector in COLLECTORS.values():
        config = _collector(collector, fields.get(collector.wire), problems, unknown)
        if config is not None:
            collectors[collector.name] = config
    return Profile(
        s3_output_path=_path("S3OutputPath", given.get("S3OutputPath"), problems),
        interval_ms=_interval(given.get("ProfilingIntervalInMilliseconds"), problems),
        disabled=disabled,
        local_path=_path("LocalPath", fields.get("LocalPath"), problems) or LOCAL_PATH.default,
        collectors=collectors,
        parameters=parameters,
        problems=[printable(problem) for problem in problems],
        unknown=_with_suggestions([*unknown, *_unknown_keys(given, fields)]),
        kms_key_id=_text(KMS_KEY, given.get(KMS_KEY), problems),
        off=_why_off(disabled=disabled, fields=fields),
        **numbers,  # type: ignore[arg-type] # each value has the type of its field
    )


def _why_off(*, disabled: bool, fields: Mapping[str, Any]) -> str:
    if disabled:
        return "DisableProfiler is true"
    if not fields:
        return "ProfilingParameters are empty: system metrics only"
    if CPU_PROFILING in fields:
        return f"ProfilingParameters are for SageMaker Profiler ({CPU_PROFILING}), not for framework profiling"
    return ""


def _text(name: str, value: object, problems: list[str]) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    problems.append(f"{name}: expected a string, found {shown(value)}")
    return None


def _path(name: str, value: object, problems: list[str]) -> str | None:
    """Return a path, unless no file or object can have it: a null byte, half of a surrogate pair."""
    path = _text(name, value, problems)
    try:
        if path is not None and b"\0" not in path.encode("utf-8", "surrogateescape"):
            return path
    except UnicodeEncodeError:
        pass
    if path is not None:
        problems.append(f"{name}: not a possible path: {shown(path)}")
    return None


def _boolean(name: str, value: object, problems: list[str]) -> bool:
    word = _word(value)
    if word not in ("true", "false", "none", "1", "0", ""):
        problems.append(f"{name}: expected true or false, found {shown(value)}")
    return word in ("true", "1")


def _word(value: object) -> str:
    return (value if isinstance(value, str) else shown(value)).strip().lower()


def _number(value: object) -> float | None:
    """Return a number from a number or its text; None if it is neither, or an integer beyond 64 bits."""
    if isinstance(value, float):
        return value
    if not isinstance(value, (str, int)):
        return None
    try:
        whole = int(value)
    except ValueError:
        try:
            return float(value)
        except ValueError:
            return None
    return whole if abs(whole) <= _MAX_INTEGER else None


def _integer(value: object) -> int | None:
    """Return a number as an integer, its fraction dropped; None if it is not a number or beyond 64 bits."""
    number = _number(value)
    return int(number) if number is not None and abs(number) <= _MAX_INTEGER else None


def _positive(setting: Setting, fields: Mapping[str, Any], problems: list[str], *, whole: bool = False) -> float:
    name, default = setting.name, float(setting.default)
    value = fields.get(name)
    if value is None:
        return default
    number = _integer(value) if whole else _number(value)
    if number is None or not number > 0:
        problems.append(f"{name}: expected a number greater than 0, found {shown(value)}; using {default:.16g}")
        return default
    return number


def _interval(value: object, problems: list[str]) -> int:
    default = int(INTERVAL.default)
    if value is None:
        return default
    number = _integer(value)
    if number is None or not 1 <= number <= MAX_INTERVAL_MS:
        allowed = ", ".join(map(str, INTERVALS_MS))
        problems.append(
            f"ProfilingIntervalInMilliseconds: expected one of {allowed}, found {shown(value)}; using {default}"
        )
        return default
    problem = interval_problem(_number(value))
    if problem is not None:
        problems.append(problem)
    return number


def _collector(
    collector: CollectorSpec, given: object, problems: list[str], unknown: list[tuple[str, Sequence[str]]]
) -> CollectorConfig | None:
    """Return a collector's config, or None if it is absent or invalid; problems and unknown keys are appended to the lists."""
    if given is None:
        return None
    wrong: list[str] = []
    try:
        fields = canonical(given if isinstance(given, Mapping) else parse_metrics(_need_text(given)), METRICS_KEYS)
    except ConfigError as error:
        problems.append(f"{collector.wire}: {error}; this collector stays off")
        return None
    config = _config(collector, fields, wrong) if fields else None  # `{}` has always meant off
    problems += [f"{collector.wire}.{error}; this collector stays off" for error in wrong]
    unknown += [(f"{collector.wire}.{key}", METRICS_KEYS) for key in fields if key not in METRICS_KEYS]
    return None if wrong else config


def _unknown_keys(given: Mapping[str, Any], fields: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the keys at the top level and among the parameters that nothing reads, with those that are known there."""
    known = (*CONFIG_KEYS, KMS_KEY, "ProfilerConfig")
    if "TrainingJobName" not in canonical(given, ("TrainingJobName",)) or given.keys() & {*CONFIG_KEYS, KMS_KEY}:
        # otherwise, it is a request without a profiler configuration, whose keys are not mistakes
        yield from ((key, known) for key in given if key not in known and key.lower() not in _RULES_KEYS)
    if CPU_PROFILING not in fields:
        yield from ((f"ProfilingParameters.{key}", HOOK_PARAMETERS) for key in fields if key not in HOOK_PARAMETERS)


def _with_suggestions(unknown: Sequence[tuple[str, Sequence[str]]]) -> dict[str, str]:
    found = {}
    for number, (path, known) in enumerate(unknown):
        key = path.rpartition(".")[2]
        misplaced = known is not HOOK_PARAMETERS and key.lower() in {name.lower() for name in HOOK_PARAMETERS}
        hint = "it belongs in ProfilingParameters" if misplaced else ""
        found[printable(path)] = hint or (suggestion(key, known) if number < MAX_SUGGESTIONS else "")
    return found


def suggestion(key: str, known: Sequence[str]) -> str:
    """Return which name may be meant, as a question; "" if none resembles the key."""
    import difflib  # hardly ever needed

    near = difflib.get_close_matches(key.lower(), [name.lower() for name in known], n=1)
    return f"did you mean {next(name for name in known if name.lower() == near[0])}?" if near else ""


def _need_text(given: object) -> str:
    if isinstance(given, str):
        return given
    raise ConfigError(f"expected a string, found {shown(given)}")


def _config(collector: CollectorSpec, fields: Mapping[str, Any], wrong: list[str]) -> CollectorConfig:
    """Return the config; a line for each invalid field is appended to `wrong`."""
    duration_key = "Duration" if fields.get("Duration") is not None else "DurationInSeconds"
    start_step, num_steps = _whole("StartStep", fields, wrong, least=0), _whole("NumSteps", fields, wrong, least=1)
    start_time = _seconds("StartTimeInSecSinceEpoch", fields, wrong)
    duration = _seconds(duration_key, fields, wrong)
    if start_time is not None and not math.isfinite(start_time):
        wrong.append(f"StartTimeInSecSinceEpoch: expected a time, found {start_time}")
    if duration is not None and duration <= 0:
        wrong.append(f"{duration_key}: expected more than 0 seconds, found {duration:g}")
    steps = start_step is not None or num_steps is not None
    times = start_time is not None or duration is not None
    if steps and times:
        wrong.append("StartStep: a range of steps and a range of time exclude each other")
    asked_default = _boolean("DefaultProfiling", fields.get("DefaultProfiling"), [])
    default = not steps and not times
    if default:
        start_step, num_steps = collector.start_step, collector.num_steps
    return CollectorConfig(
        start_step=start_step,
        num_steps=num_steps,
        start_time=start_time,
        duration=duration,
        timer=_choice("cProfileTimer", fields, wrong, TIMERS, "default" if asked_default else "total_time"),
        metrics_regex=_regex(fields.get("MetricsRegex"), wrong),
        profiler=_choice("ProfilerName", fields, wrong, PROFILERS, "cprofile"),
        default=default or asked_default,
    )


def _whole(name: str, fields: Mapping[str, Any], wrong: list[str], *, least: int) -> int | None:
    value = fields.get(name)
    number = _integer(value)
    if value is not None and (number is None or number != _number(value) or number < least):
        wrong.append(f"{name}: expected an integer of at least {least}, found {shown(value)}")
        return None
    return number


def _seconds(name: str, fields: Mapping[str, Any], wrong: list[str]) -> float | None:
    value = fields.get(name)
    number = _number(value)
    if value is not None and (number is None or math.isnan(number)):
        wrong.append(f"{name}: expected seconds, found {shown(value)}")
        return None
    return number


def _choice(name: str, fields: Mapping[str, Any], wrong: list[str], choices: tuple[str, ...], default: str) -> str:
    value = fields.get(name)
    if value is None:
        return default
    word = _word(value)
    if word not in choices:
        wrong.append(f"{name}: expected one of {', '.join(choices)}, found {shown(value)}")
    return word


def _regex(value: object, wrong: list[str]) -> str:
    if value is None:
        return ".*"
    if not isinstance(value, str):
        wrong.append(f"MetricsRegex: expected a string, found {shown(value)}")
        return ".*"
    try:
        NamePattern(value)
    except ValueError as error:
        wrong.append(f"MetricsRegex: {shown(value)} cannot be used: {error}")
    return value
