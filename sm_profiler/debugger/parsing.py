"""From a request, or what DescribeTrainingJob answers, back to objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sm_profiler.config.notation import parse_metrics
from sm_profiler.debugger import metrics_config as metrics
from sm_profiler.debugger.utils import PythonProfiler, cProfileTimer
from sm_profiler.errors import ConfigError

CONFIG_KEYS = ("S3OutputPath", "DisableProfiler", "ProfilingIntervalInMilliseconds", "ProfilingParameters")
_CLASSES: tuple[type[metrics.MetricsConfigBase], ...] = (
    metrics.DetailedProfilingConfig,
    metrics.DataloaderProfilingConfig,
    metrics.PythonProfilingConfig,
    metrics.HorovodProfilingConfig,
    metrics.SMDataParallelProfilingConfig,
)
_BY_NAME = {kind.__name__.lower(): kind for kind in _CLASSES}
PARAMETER_KEYS = (
    "LocalPath",
    "RotateMaxFileSizeInBytes",
    "RotateFileCloseIntervalInSeconds",
    "FileOpenFailThreshold",
    *(kind.__name__ for kind in _CLASSES),
    "CPUProfilingDuration",
    "SMPFileRotationSecs",
)
_ARGUMENTS = {
    "startstep": "start_step",
    "numsteps": "num_steps",
    "starttimeinsecsinceepoch": "start_unix_time",
    "duration": "duration",
    "durationinseconds": "duration",
    "metricsregex": "metrics_regex",
    "profilername": "python_profiler",
    "cprofiletimer": "cprofile_timer",
    "defaultprofiling": "profile_default_steps",
}


def decoded(request: Mapping[str, Any] | str | bytes) -> dict[str, Any]:
    """A request as an object, its keys in the API's own case; a DescribeTrainingJob answer is looked into.

    Raises:
        ConfigError: it is not a JSON object.
    """
    if isinstance(request, (str, bytes)):
        import json  # noqa: PLC0415 - for a quick import of the facade

        try:
            request = json.loads(request)
        except ValueError as error:
            raise ConfigError(f"the profiler configuration is not JSON: {error}") from None
    if not isinstance(request, Mapping):
        raise ConfigError(f"the profiler configuration must be an object, not {type(request).__name__}")
    named = canonical(request, CONFIG_KEYS)
    if not named.keys() & set(CONFIG_KEYS):
        inner = canonical(request, ("ProfilerConfig",)).get("ProfilerConfig")
        if isinstance(inner, Mapping):
            return canonical(inner, CONFIG_KEYS)
    return named


def canonical(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The same, with keys in their usual case where they are known."""
    known = {name.lower(): name for name in names}
    return {known.get(str(key).lower(), str(key)): value for key, value in given.items()}


def metrics_configs(parameters: Mapping[str, str]) -> dict[str, metrics.MetricsConfigBase]:
    """The metrics configs among `ProfilingParameters`, by their names.

    Raises:
        ConfigError: one cannot be parsed, or its values are invalid.
    """
    return {
        kind.__name__: metrics_config(kind, text)
        for name, text in parameters.items()
        if (kind := _BY_NAME.get(name.lower())) is not None
    }


def metrics_config(kind: type[metrics.MetricsConfigBase], text: str) -> metrics.MetricsConfigBase:
    """One metrics config from its notation.

    Raises:
        ConfigError: it cannot be parsed, or its values are invalid.
    """
    try:
        fields = {_ARGUMENTS.get(key.lower(), key): value for key, value in parse_metrics(text).items()}
        arguments: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        if "python_profiler" in arguments:
            arguments["python_profiler"] = PythonProfiler(str(arguments["python_profiler"]).lower())
        if "cprofile_timer" in arguments:
            arguments["cprofile_timer"] = cProfileTimer(str(arguments["cprofile_timer"]).lower())
        return kind(**arguments)
    except (AssertionError, ConfigError, TypeError, ValueError) as error:
        raise ConfigError(f"{kind.__name__}: {error}") from None
