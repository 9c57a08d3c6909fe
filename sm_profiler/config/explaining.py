"""Explain a configuration in plain English: what it records when, and what is odd or wrong about it."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import attrs

from sm_profiler.config.api import (
    MAX_PARAMETER_LENGTH,
    MAX_PARAMETERS,
    MAX_RULES,
    decode_config,
    interval_problem,
    may_exist,
    rule_problems,
    shown,
)
from sm_profiler.config.launched import Launched
from sm_profiler.config.profile import (
    COLLECTORS,
    MAX_SUGGESTIONS,
    CollectorConfig,
    NamePattern,
    Profile,
    load_profile,
    suggestion,
)
from sm_profiler.container import CHECKPOINTS, OPT_ML, OUTPUT_DATA, path_problems
from sm_profiler.printable import printable

_WHAT = {
    "detailed": "operators and kernels",
    "dataloader": "data loader events",
    "python": "Python code",
    "horovod": "Horovod's timeline",
    "smddp": "the timeline of SageMaker's data parallel library",
}
_UNRECORDED = frozenset({"horovod", "smddp"})  # windows that the hook has no collector for
_TIMERS = {
    "total_time": "by wall time",
    "cpu_time": "by CPU time",
    "off_cpu_time": "by time off the CPU",
    "default": "by wall time, CPU time and time off the CPU in turn",
}
# built-in rule → its parameters
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
S3 = "s3://"
# parameters of the runner (`rules.rule_job`), and one of the service
_ALWAYS = {
    "rule_to_invoke", "scan_interval_us", "source_s3_uri", "rule_timeout_secs", "rule_follow", "rule_compat",
    "rule_allow_stop_training", "rule_stop_grace_time_secs", "action_json", "opt_out_telemetry",
}  # fmt: skip
_MAX_LISTED = 10  # names of parameters in a message

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


@attrs.frozen
class Explanation:
    """A configuration in plain English; printing it shows all lines, problems first.

    Attributes:
        does: lines on what will be recorded and stored.
        odd: lines on settings that are valid but probably not intended.
        wrong: lines on settings that will be ignored, switched off or rejected.
    """

    does: list[str]
    odd: list[str]
    wrong: list[str]

    def __str__(self) -> str:
        """Return all lines, those of `wrong` and `odd` first."""
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
        config: the configuration, its keys in any case, or a request or answer that contains it.
        rules: the rules' configurations.
        job: the rest of the CreateTrainingJob request or of the DescribeTrainingJob answer: its time limit, network
            isolation and checkpoints are taken into account.
        now: seconds since the epoch; without it, windows of time are not checked against the clock.

    Returns:
        The explanation.

    Raises:
        ConfigError: `config` is not an object.
    """
    profile, job = load_profile(config), job or {}
    evaluating = () if profile.disabled else rules
    does = [*_system(profile), *_framework(profile, job), *_rules(evaluating), *_storage(profile, job)]
    wrong = wrong_settings(config, rules)
    return Explanation(*([printable(line) for line in lines] for lines in (does, _odd(profile, job, now), wrong)))


def wrong_settings(config: Mapping[str, Any], rules: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Return a line for each setting that will be ignored, switched off or rejected; arguments as those of `explain`."""
    profile = load_profile(config)
    return [
        *profile.problems,
        *_path_problems(profile),
        *_unknown_keys(profile),
        *_wrong_types(config),
        *_rejected(profile, rules),
    ]


def _system(profile: Profile) -> Iterator[str]:
    if profile.disabled:
        yield "Nothing is profiled: DisableProfiler is true."
    elif interval_problem(profile.interval_ms) is None:
        yield f"System metrics are sampled every {_milliseconds(profile.interval_ms)}."
    else:
        yield f"System metrics are sampled every {_milliseconds(profile.interval_ms)} where the API has no part in it; it rejects this interval."


def _framework(profile: Profile, job: Mapping[str, Any]) -> Iterator[str]:
    if profile.disabled:
        return
    launched = _launched(job)
    if launched is not None and launched.switch is not None and not launched.hook:
        yield f"No framework metrics: {launched.why_off}."
        return
    if profile.off:
        yield f"No framework metrics: {profile.off}."
        return
    yield f"Every step is recorded, its phases as often as the overhead budget allows, under {profile.local_path}."
    recorded = {name: collector for name, collector in profile.collectors.items() if name not in _UNRECORDED}
    for name, collector in recorded.items():
        yield f"{_when(collector)}: {_what(name, collector)}."
    missing = [_WHAT[name] for name in COLLECTORS if name not in recorded]
    if missing:
        yield f"Not collected: {', '.join(missing)}."


def _launched(job: Mapping[str, Any]) -> Launched | None:
    """Return the settings of a whole request or answer, None of a few parameters."""
    return Launched.of(job) if job.keys() & {"Environment", "TrainingJobName"} else None


def _what(name: str, collector: CollectorConfig) -> str:
    if name == "python":
        if collector.profiler == "pyinstrument":
            return "Python code, sampled by Pyinstrument"
        return f"Python code, measured by cProfile {_TIMERS[collector.timer]}"
    if name == "dataloader" and collector.metrics_regex != ".*":
        return f"data loader events whose names match {collector.metrics_regex}"
    return _WHAT[name]


def _when(collector: CollectorConfig) -> str:
    """Describe the window as the hook applies it."""
    if not collector.by_time:
        if collector.start_step is None:
            steps = collector.num_steps or 1
            return "The first step seen" if steps == 1 else f"The first {steps} steps seen"
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
        yield f"Rule {rule.get('RuleConfigurationName')} evaluates the profile{own}."


def _storage(profile: Profile, job: Mapping[str, Any]) -> Iterator[str]:
    if profile.disabled:
        return
    if job.get("EnableNetworkIsolation") is True:
        checkpoints = job.get("CheckpointConfig")
        if isinstance(checkpoints, Mapping):
            stored = f"{checkpoints.get('LocalPath') or CHECKPOINTS}, which the service syncs while the job runs"
        else:
            stored = f"{OUTPUT_DATA}, which the service stores when the job ends"
        yield (
            "The container has no network: the managed service uploads the profile itself; with backend='agent' it is "
            f"written under {stored}."
        )
    elif profile.s3_output_path and profile.s3_output_path.startswith(S3):
        yield f"The profile is stored under {profile.s3_output_path.rstrip('/')}/<job name>/profiler-output."
    elif not profile.s3_output_path:
        of_service = "in SageMaker, an Estimator uses the job's output path, boto3 does not"
        if job:
            yield f"No S3OutputPath is set: {of_service.removeprefix('in SageMaker, ')}."
        elif profile.local_path.startswith(f"{OPT_ML}/"):
            yield f"No S3OutputPath is set: {of_service}; elsewhere, the profile stays on the machine, in LocalPath."
        else:
            yield f"No S3OutputPath is set: the profile stays in {profile.local_path}."


def _odd(profile: Profile, job: Mapping[str, Any], now: float | None) -> Iterator[str]:
    if profile.disabled:
        return
    for key, text in _paths(profile):
        for problem in path_problems(text)[1]:
            yield f"{key}: {problem} here; the hook stays off in a job without it"
    launched = _launched(job)
    if launched is not None:
        yield from _odd_in_a_job(launched, profile, job)
    stopping = job.get("StoppingCondition")
    limit = stopping.get("MaxRuntimeInSeconds") if isinstance(stopping, Mapping) else None
    for name, collector in profile.collectors.items():
        wire = COLLECTORS[name].wire
        start, duration = collector.start_time, collector.duration
        if now is not None and start is not None:
            if duration is not None and start + duration < now:
                yield f"{wire}: its window ended at {_time(start + duration)}, in the past"
            elif isinstance(limit, int) and limit < start - now:
                yield f"{wire}: its window starts at {_time(start)}, after the job's time limit of {_seconds(limit)} from now"
        if start is not None and start > 1e11:  # year 5138 in seconds, 1973 in milliseconds
            yield f"{wire}: StartTimeInSecSinceEpoch {start:g} looks like milliseconds"
        if name == "detailed" and (collector.num_steps or 0) > 100:  # each step takes megabytes
            yield f"{wire}: {collector.num_steps} steps of operators and kernels slow the training down and fill the disk"
        if name == "dataloader" and not any(map(NamePattern(collector.metrics_regex).matches, _LOADER_NAMES)):
            yield f"{wire}: MetricsRegex {collector.metrics_regex!r} matches none of PyTorch's data loader events"


def _odd_in_a_job(launched: Launched, profile: Profile, job: Mapping[str, Any]) -> Iterator[str]:
    if not launched.hook and (launched.by_agent or not profile.off):
        unless = "" if launched.switch else ", unless the image has it or the script starts the hook itself"
        yield f"{launched.why_off}: the hook stays off{unless}"
    output = job.get("OutputDataConfig")
    key = output.get("KmsKeyId") if isinstance(output, Mapping) else None
    if key and launched.by_agent and profile.kms_key_id is None and job.get("EnableNetworkIsolation") is not True:
        yield (
            f"KmsKeyId: the job's results are encrypted with {shown(key)}, the agent's uploads with the bucket's own key: pass "
            "kms_key_id= to agent_environment(…)"
        )


def _wrong_types(config: Mapping[str, Any]) -> Iterator[str]:
    """Name what the hook reads and the API rejects: texts in place of a number or a boolean."""
    given = decode_config(config)
    for key, expected in (("DisableProfiler", "true or false"), ("ProfilingIntervalInMilliseconds", "a number")):
        if isinstance(given.get(key), str):
            yield f"{key}: the API expects {expected}, not the text {shown(given[key])}"


def _paths(profile: Profile) -> Iterator[tuple[str, str]]:
    yield "LocalPath", profile.local_path
    yield "S3OutputPath", profile.s3_output_path or ""


def _path_problems(profile: Profile) -> Iterator[str]:
    for key, text in _paths(profile):
        for problem in path_problems(text)[0]:
            yield f"{key}: {problem}; the hook stays off"


def _rejected(profile: Profile, rules: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from rule_problems(profile.disabled, rules)
    if profile.s3_output_path and not profile.s3_output_path.startswith(S3):
        yield f"S3OutputPath: expected an address such as {S3}bucket/prefix, found {shown(profile.s3_output_path)}"
    elif profile.s3_output_path and not may_exist(profile.s3_output_path):
        yield f"S3OutputPath: no bucket can have the name in {shown(profile.s3_output_path)}"
    if len(rules) > MAX_RULES:
        yield f"{len(rules)} rules: the API accepts {MAX_RULES}"
    if len(profile.parameters) > MAX_PARAMETERS:
        yield f"ProfilingParameters: {len(profile.parameters)} entries, the API accepts {MAX_PARAMETERS}"
    for key, value in profile.parameters.items():
        if isinstance(value, str) and len(value) > MAX_PARAMETER_LENGTH:
            yield f"{key}: {len(value)} characters, the API accepts {MAX_PARAMETER_LENGTH}"
    for rule in rules:
        yield from _unknown_parameters(rule)


def _unknown_keys(profile: Profile) -> Iterator[str]:
    for key, hint in islice(profile.unknown.items(), MAX_SUGGESTIONS):
        yield f"{key}: unknown, ignored{hint and f'; {hint}'}"
    if len(profile.unknown) > MAX_SUGGESTIONS:
        yield f"{len(profile.unknown) - MAX_SUGGESTIONS} more unknown keys, ignored"


def _unknown_parameters(rule: Mapping[str, Any]) -> Iterator[str]:
    parameters = rule.get("RuleParameters")
    for line in parameter_problems(parameters) if isinstance(parameters, Mapping) else ():
        yield f"rule {rule.get('RuleConfigurationName')}: {line}"


def parameter_problems(parameters: Mapping[str, Any], *, everywhere: bool = False, ours: bool = False) -> Iterator[str]:
    """Yield a line for each parameter that a built-in rule does not have.

    Args:
        parameters: the rule's `RuleParameters`.
        everywhere: only what every image refuses: an image of users may have rules of other packages.
        ours: sm-profiler's image evaluates the rule, so that a name much like that of a built-in rule is a slip.
    """
    invoked = str(parameters.get("rule_to_invoke", ""))
    if "source_s3_uri" in parameters:
        return  # a custom rule
    known = {name: (*text.split(), "scan_interval_us") for name, text in _RULE_PARAMETERS.items()}
    given = [key for key in map(str, parameters) if key not in _ALWAYS and not key.isupper()]  # those are variables
    if invoked == "ProfilerReport":
        names = {f"{rule}_{name}": rule for rule, own in known.items() for name in own}
        accepted, owners = {name.lower() for name in names}, {rule.lower() for rule in known}
        for key in given:
            owner, _, parameter = key.partition("_")
            hint = "" if f"{owner.lower()}_{parameter}" in accepted else _near(key, tuple(names))
            if f"{owner.lower()}_{parameter}" not in accepted and (hint or owner.lower() in owners or not everywhere):
                yield f"unknown parameter {key}{hint or '; those of ProfilerReport are named <rule>_<parameter>'}"
    elif ours and invoked not in known and (near := suggestion(invoked, ("ProfilerReport", *known))):
        yield f"unknown rule {invoked}; {near}"
    elif invoked in known:
        for key in given:
            own = key[len(invoked) + 1 :] if key.lower().startswith(f"{invoked}_".lower()) else key
            if own not in known[invoked]:
                yield f"unknown parameter {key}{_near(own, known[invoked])}"


def _near(key: str, names: Sequence[str]) -> str:
    near = suggestion(key, names)
    return f"; {near}" if near else f"; it has {', '.join(names)}" if len(names) < _MAX_LISTED else ""


def _time(seconds: float) -> str:
    try:
        return dt.datetime.fromtimestamp(seconds, dt.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} s after 1970"


def _seconds(seconds: float) -> str:
    return f"{seconds:g} second{'' if seconds == 1 else 's'}"


def _milliseconds(number: int) -> str:
    return f"{number} ms" if number < 1000 else _seconds(number / 1000)  # milliseconds in a second
