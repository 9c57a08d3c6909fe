"""A configuration in plain words: what will be profiled when, and what is odd about it."""

from __future__ import annotations

import datetime as dt
import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from sm_profiler.config.loading import load_profile
from sm_profiler.config.profile import COLLECTORS, CollectorConfig, Profile
from sm_profiler.container import CHECKPOINTS, OUTPUT_DATA

MAX_PARAMETERS, MAX_VALUE, MAX_RULES = 20, 256, 20

_WHAT = {
    "detailed": "operators and kernels",
    "dataloader": "data loader events",
    "python": "Python code",
    "horovod": "Horovod's timeline",
    "smddp": "the timeline of SageMaker's data parallel library",
}
_TIMERS = {
    "total_time": "by wall time",
    "cpu_time": "by CPU time",
    "off_cpu_time": "by time off the CPU",
    "default": "by wall time, CPU time and time off the CPU in turn",
}
# parameter → the rules that have it; a rule that is none of these has parameters of its own
_RULE_PARAMETERS = {
    "BatchSize": "cpu_threshold_p95 gpu_threshold_p95 gpu_memory_threshold_p95 patience window",
    "CPUBottleneck": "threshold gpu_threshold cpu_threshold patience",
    "Dataloader": "min_threshold max_threshold",
    "GPUMemoryIncrease": "increase patience window",
    "IOBottleneck": "threshold gpu_threshold io_threshold patience",
    "LoadBalancing": "threshold patience",
    "LowGPUUtilization": "threshold_p95 threshold_p5 window patience",
    "MaxInitializationTime": "threshold",
    "OverallFrameworkMetrics": "",
    "OverallSystemUsage": "",
    "StepOutlier": "stddev mode n_outliers",
}
_PROFILE_KEYS = (
    "S3OutputPath",
    "DisableProfiler",
    "ProfilingIntervalInMilliseconds",
    "ProfilingParameters",
    "KmsKeyId",
)
_RULES_KEYS = {"profilerruleconfigurations", "profiler_rule_configurations"}  # beside the configuration, in any case
_PARAMETERS = (
    "LocalPath",
    "RotateMaxFileSizeInBytes",
    "RotateFileCloseIntervalInSeconds",
    "FileOpenFailThreshold",
    *(collector.wire for collector in COLLECTORS.values()),
)
_ALWAYS = {"rule_to_invoke", "scan_interval_us", "source_s3_uri"}


@attrs.frozen
class Explanation:
    """What a configuration does, in lines of plain words.

    Attributes:
        does: what will happen.
        odd: what is probably not meant.
        wrong: what will be ignored, switched off or refused.
    """

    does: list[str]
    odd: list[str]
    wrong: list[str]

    def __str__(self) -> str:
        """All of it, a line each; first what is wrong."""
        return "\n".join(
            [*(f"wrong: {line}" for line in self.wrong), *(f"odd: {line}" for line in self.odd), *self.does]
        )


def explain(
    config: Mapping[str, Any],
    rules: Sequence[Mapping[str, Any]] = (),
    *,
    job: Mapping[str, Any] | None = None,
    now: float | None = None,
) -> Explanation:
    """Explain the API's `ProfilerConfig` and `ProfilerRuleConfigurations`.

    Args:
        config: under the API's names, in any case.
        rules: the rules' configurations.
        job: the rest of the CreateTrainingJob request or of the DescribeTrainingJob answer, for its time limit, network
            isolation and checkpoints.
        now: seconds since the epoch, for windows of time; without it they are not judged.

    Raises:
        ConfigError: it is no configuration at all.
    """
    profile = load_profile(config)
    job = job or {}
    does = [*_system(profile), *_framework(profile), *_rules(rules), *_storage(profile, job)]
    wrong = [*profile.problems, *_unknown_keys(config, profile), *_refused(profile, rules)]
    return Explanation(does, list(_odd(profile, job, now)), wrong)


def _system(profile: Profile) -> Iterator[str]:
    if profile.disabled:
        yield "Nothing is profiled: DisableProfiler is true."
    else:
        yield f"System metrics are sampled every {_milliseconds(profile.interval_ms)}."


def _framework(profile: Profile) -> Iterator[str]:
    if profile.disabled:
        return
    if profile.off:
        yield f"No framework metrics: {profile.off}."
        return
    yield f"Steps and phases are recorded throughout, under {profile.local_path}."
    for name, collector in profile.collectors.items():
        yield f"{_when(collector)}: {_what(name, collector)}."
    missing = [_WHAT[name] for name in COLLECTORS if name not in profile.collectors]
    if missing:
        yield f"Not collected: {', '.join(missing)}."


def _what(name: str, collector: CollectorConfig) -> str:
    if name == "python":
        if collector.profiler == "pyinstrument":
            return "Python code, sampled by Pyinstrument"
        return f"Python code, measured by cProfile {_TIMERS[collector.timer]}"
    if name == "dataloader" and collector.metrics_regex != ".*":
        return f"data loader events whose names match {collector.metrics_regex}"
    return _WHAT[name]


def _when(collector: CollectorConfig) -> str:
    """The window, as the hook decides it."""
    if not collector.by_time:
        if collector.start_step is None:
            return f"The first {_count(collector.num_steps or 1, 'step')} seen"
        first, number = collector.start_step, collector.num_steps or 1
        return f"Step {first}" if number == 1 else f"Steps {first} to {first + number - 1}"
    start = _time(collector.start_time) if collector.start_time is not None else None
    if collector.duration is None:
        return f"The first step at or after {start}"
    length = "to the end of the job" if math.isinf(collector.duration) else f"for {_seconds(collector.duration)}"
    return f"From {start} on, {length}" if start else f"From the first step on, {length}"


def _rules(rules: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for rule in rules:
        image = rule.get("RuleEvaluatorImage", "")
        own = (
            "" if image == "DEFAULT_RULE_EVALUATOR_IMAGE" or "sagemaker-debugger-rules" in str(image) else f" ({image})"
        )
        yield f"Rule {rule.get('RuleConfigurationName')} judges the profile{own}."


def _storage(profile: Profile, job: Mapping[str, Any]) -> Iterator[str]:
    if profile.disabled:
        return
    if job.get("EnableNetworkIsolation") is True:
        checkpoints = job.get("CheckpointConfig")
        folder = (checkpoints.get("LocalPath") or CHECKPOINTS) if isinstance(checkpoints, Mapping) else OUTPUT_DATA
        kept = "the service syncs it while the job runs" if checkpoints else "the service stores it when the job ends"
        yield (
            "The container has no network: the managed service uploads the profile by itself; with backend='agent' it is "
            f"written under {folder}, and {kept}."
        )
    elif profile.s3_output_path:
        yield f"The profile is stored under {profile.s3_output_path.rstrip('/')}/<job name>/profiler-output."
    else:
        yield "Where the profile is stored is not said: an Estimator fills in the job's output path, boto3 does not."


def _odd(profile: Profile, job: Mapping[str, Any], now: float | None) -> Iterator[str]:
    if profile.disabled:
        return
    limit = (job.get("StoppingCondition") or {}).get("MaxRuntimeInSeconds")
    for name, collector in profile.collectors.items():
        wire = COLLECTORS[name].wire
        start, duration = collector.start_time, collector.duration
        if now is not None and start is not None:
            if duration is not None and start + duration < now:
                yield f"{wire}: its window ended at {_time(start + duration)}, which is over"
            elif isinstance(limit, int) and start > now + limit:
                yield f"{wire}: its window starts at {_time(start)}, after the job's limit of {_seconds(limit)} from now"
        if start is not None and start > 1e11:  # noqa: PLR2004 - seconds of the year 5138; milliseconds of 1973
            yield f"{wire}: StartTimeInSecSinceEpoch {start:g} looks like milliseconds"
        if name == "detailed" and (collector.num_steps or 0) > 100:  # noqa: PLR2004 - each step of it costs megabytes
            yield f"{wire}: {collector.num_steps} steps of operators and kernels slow the training down and fill the disk"
        if name == "dataloader" and not any(
            re.match(collector.metrics_regex, known, re.IGNORECASE) for known in _LOADER_NAMES
        ):
            yield f"{wire}: MetricsRegex {collector.metrics_regex!r} matches none of PyTorch's data loader events"


_LOADER_NAMES = (
    "_SingleProcessDataLoaderIter.__init__",
    "_MultiProcessingDataLoaderIter.__init__",
    "_SingleProcessDataLoaderIter::GetNext",
    "_MultiProcessingDataLoaderIter::GetNext",
    "DataLoaderIter::GetNext",
    "DataLoaderWorker",
    "DataLoaderWorkerFetch",
    "DataLoaderPinMemory",
)


def _refused(profile: Profile, rules: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if profile.disabled and rules:
        yield "the service refuses profiler rules while DisableProfiler is true"
    if len(rules) > MAX_RULES:
        yield f"{len(rules)} rules: the API accepts {MAX_RULES}"
    if len(profile.parameters) > MAX_PARAMETERS:
        yield f"ProfilingParameters: {len(profile.parameters)} entries, the API accepts {MAX_PARAMETERS}"
    for key, value in profile.parameters.items():
        if isinstance(value, str) and len(value) > MAX_VALUE:
            yield f"{key}: {len(value)} characters, the API accepts {MAX_VALUE}"
    names = [rule.get("RuleConfigurationName") for rule in rules]
    for name in sorted({str(name) for name in names if names.count(name) > 1}):
        yield f"two rules are named {name}"
    for rule in rules:
        yield from _unknown_parameters(rule)


def _unknown_keys(config: Mapping[str, Any], profile: Profile) -> Iterator[str]:
    """Keys that are read by nobody, at the top and among the parameters."""
    lowered = {str(key).lower(): value for key, value in config.items()}
    inner = lowered.get("profilerconfig")
    if isinstance(inner, Mapping) and not lowered.keys() & {key.lower() for key in _PROFILE_KEYS}:
        config = inner
    elif "trainingjobname" in lowered:
        return  # a request without a profiler configuration: its keys are no mistakes
    known = {key.lower() for key in _PROFILE_KEYS} | _RULES_KEYS
    for key in map(str, config):
        if key.lower() not in known:
            place = "; its place is in ProfilingParameters" if key.lower() in _LOWER_PARAMETERS else ""
            yield f"{key}: unknown, ignored{place or _near(key, (*_PROFILE_KEYS, 'ProfilerConfig'))}"
    if "CPUProfilingDuration".lower() in map(str.lower, map(str, profile.parameters)):
        return  # another product's
    for key in map(str, profile.parameters):
        if key.lower() not in _LOWER_PARAMETERS:
            yield f"ProfilingParameters.{key}: unknown, ignored{_near(key, _PARAMETERS)}"


_LOWER_PARAMETERS = {name.lower() for name in _PARAMETERS}


def _near(key: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(key.lower(), [name.lower() for name in names], n=1)
    return f"; did you mean {next(name for name in names if name.lower() == near[0])}?" if near else ""


def _unknown_parameters(rule: Mapping[str, Any]) -> Iterator[str]:
    parameters = rule.get("RuleParameters") or {}
    invoked = str(parameters.get("rule_to_invoke", ""))
    if "source_s3_uri" in parameters:
        return  # a rule of the user's own
    if invoked == "ProfilerReport":
        known = {name.lower(): set(text.split()) | {"scan_interval_us"} for name, text in _RULE_PARAMETERS.items()}
        for key in parameters:
            owner, _, parameter = key.partition("_")
            if key not in _ALWAYS and not (parameter and parameter.lower() in known.get(owner.lower(), ())):
                yield f"rule {rule.get('RuleConfigurationName')}: unknown parameter {key}; they are named <rule>_<parameter>"
    elif invoked in _RULE_PARAMETERS:
        accepted = set(_RULE_PARAMETERS[invoked].split()) | _ALWAYS
        for key in parameters.keys() - accepted:
            yield f"rule {rule.get('RuleConfigurationName')}: unknown parameter {key}"


def _time(seconds: float) -> str:
    try:
        return dt.datetime.fromtimestamp(seconds, dt.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} s after 1970"


def _seconds(seconds: float) -> str:
    return f"{seconds:g} second{'' if seconds == 1 else 's'}"


def _milliseconds(number: int) -> str:
    return f"{number} ms" if number < 1000 else _seconds(number / 1000)  # noqa: PLR2004 - milliseconds in a second


def _count(number: int, what: str) -> str:
    return what if number == 1 else f"{number} {what}s"
