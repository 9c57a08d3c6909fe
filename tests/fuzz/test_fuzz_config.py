"""Fuzzing of everything that takes a configuration: it ends within a second with a result or a one-line error.

`make test` tries about 200 inputs; `SM_PROFILER_FUZZ` sets another total.
"""

import contextlib
import io
import json
import math
import os
import signal
import sys
import warnings

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sm_profiler import debugger
from sm_profiler.cli import main
from sm_profiler.config import (
    COLLECTORS,
    config_from_environment,
    environment_for,
    explain,
    load_profile,
    parse_metrics,
)
from sm_profiler.config.api import METRICS_KEYS, PARAMETER_KEYS
from sm_profiler.config.profile import NamePattern
from sm_profiler.debugger.debugger import registered_image
from sm_profiler.errors import ConfigError
from sm_profiler.hook.settings import rank_from
from sm_profiler.launch import agent_environment, check_request, to_request
from sm_profiler.launch.attachment import _Adder
from sm_profiler.settings import settings_path

TESTS = 13
MANY = settings(
    max_examples=int(os.environ.get("SM_PROFILER_FUZZ", "200")) // TESTS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
CPU_SECONDS = 1.0
SDK_ERRORS = (
    AssertionError,
    TypeError,
    ValueError,
    OverflowError,
    OSError,
)  # the SDK raises them for the same arguments

# --- inputs ---------------------------------------------------------------------------------------------------------

SEEDS = [
    json.dumps(debugger.ProfilerConfig("s3://b", 500, framework)._to_request_dict())
    for framework in (
        None,
        debugger.FrameworkProfile(),
        debugger.FrameworkProfile(start_step=3, num_steps=2),
        debugger.FrameworkProfile(start_unix_time=1_900_000_000, duration=math.inf),
        debugger.FrameworkProfile(
            dataloader_profiling_config=debugger.DataloaderProfilingConfig(metrics_regex=r'a"\d')
        ),
    )
]
BRACES = [
    "{",
    "}",
    '"',
    "'",
    ",",
    ":",
    "\\",
    "[",
    "]",
    "None",
    "inf",
    "1e999",
    "²",
    "\x1b[31m",
    "\x00",
    "\u202e",
    "\ud800",
    "9" * 310,
]
KEYS = [
    *("S3OutputPath", "DisableProfiler", "ProfilingIntervalInMilliseconds", "ProfilingParameters", "ProfilerConfig"),
    *("KmsKeyId", "TrainingJobName", "ProfilerRuleConfigurations", "RuleConfigurationName", "RuleEvaluatorImage"),
    *("RuleParameters", "StoppingCondition", "CheckpointConfig", "EnableNetworkIsolation", "MaxRuntimeInSeconds"),
    *PARAMETER_KEYS,
    *METRICS_KEYS,
]
numbers = st.integers() | st.floats() | st.sampled_from([10**18, 10**310, -(10**310), 2**63, 1e308, True])
texts = (
    st.text(max_size=30)
    | st.sampled_from(BRACES)
    | st.sampled_from(["true", "100", "s3://b/p", "DEFAULT_RULE_EVALUATOR_IMAGE", "ProfilerReport", "x" * 5000])
)
fragments = st.lists(
    st.sampled_from([*BRACES, " ", *(f'"{key}": ' for key in METRICS_KEYS), "1", '"x"', ", "]), max_size=40
)
notations = fragments.map("".join) | fragments.map(lambda parts: "{" + "".join(parts)) | st.text(max_size=200)
regexes = st.lists(
    st.sampled_from(
        ["a", "(", ")", "*", "+", "?", "{2,9}", "{999}", "|", ".", "[", "]", "^", "$", r"\1", r"\b", "(?=", "(?i)", "²"]
    ),
    max_size=25,
).map("".join)
keys = st.sampled_from(KEYS) | st.sampled_from(KEYS).map(str.swapcase) | texts
values = st.recursive(
    st.none() | st.booleans() | numbers | texts | notations | regexes,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6),
    max_leaves=12,
)
objects = st.dictionaries(keys, values, max_size=8)
edits = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(0, 9), st.sampled_from(BRACES) | st.text(max_size=3)), max_size=6
)


def mutated(seed, changes):
    for at, removed, added in changes:
        start = at % (len(seed) + 1)
        seed = seed[:start] + added + seed[start + removed :]
    return seed


damaged = st.builds(mutated, st.sampled_from(SEEDS), edits)
sources = (
    objects
    | damaged
    | st.text(max_size=50)
    | st.binary(max_size=50)
    | damaged.map(lambda text: text.encode("utf-8", "surrogatepass"))
)


# --- limits ---------------------------------------------------------------------------------------------------------


class TooSlowError(BaseException):
    """Raised in the code under test; not an Exception, so that nothing handles it."""


@contextlib.contextmanager
def limited():
    """Interrupt the block after one second of processor time."""

    def interrupt(_number, _frame):
        raise TooSlowError

    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def result(call, *arguments, errors=(ConfigError,), **keywords):
    """Return the result of a call within the limit, or None if it raises one of the errors; a ConfigError is one line."""
    message = ""
    try:
        with limited():
            return call(*arguments, **keywords)
    except errors as error:
        message = str(error) if isinstance(error, ConfigError) else ""
    assert len(message) < 20_000
    assert message.isprintable()
    return None


@pytest.fixture(autouse=True)
def settings_file(monkeypatch, tmp_path_factory):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "SM_PROFILER_RULE_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SM_PROFILER_SETTINGS", str(tmp_path_factory.mktemp("settings") / "config.json"))


# --- tests ----------------------------------------------------------------------------------------------------------


HUGE = {
    "ProfilingIntervalInMilliseconds": 10**5000,
    "S3OutputPath": 10**5000,
    "DisableProfiler": 10**5000,
    "ProfilingParameters": {
        "LocalPath": 10**5000,
        "RotateMaxFileSizeInBytes": 10**5000,
        "DetailedProfilingConfig": {"StartStep": 10**5000, "Duration": -(10**5000)},
    },
}


@MANY
@given(sources)
@example(HUGE)
def test_load_profile(source):
    profile = result(load_profile, source)
    if profile is not None:
        assert all(line.isprintable() and len(line) < 20_000 for line in profile.problems)
        assert set(profile.collectors) <= set(COLLECTORS)
        assert 1 <= profile.interval_ms <= 24 * 3600 * 1000
        for collector in profile.collectors.values():
            result(NamePattern(collector.metrics_regex).matches, "DataLoaderIter::GetNext" * 9)


@MANY
@given(notations | damaged)
def test_parse_metrics(text):
    found = result(parse_metrics, text)
    assert found is None or all(isinstance(value, (str, int, float, bool, type(None))) for value in found.values())


@MANY
@given(regexes, texts)
def test_name_pattern(pattern, name):
    compiled = result(NamePattern, pattern, errors=(ValueError,))
    if compiled is not None:
        assert result(compiled.matches, name * 20) in (True, False)


@MANY
@given(
    objects | damaged.map(lambda text: {"ProfilerConfig": text}),
    st.lists(objects, max_size=3),
    objects,
    st.floats(0, 1e12) | st.none(),
)
@example(HUGE, [HUGE], HUGE, 0.0)
def test_explain(config, rules, job, now):
    explanation = result(explain, config, rules, job=job, now=now)
    assert explanation is None or all(line.isprintable() for line in str(explanation).splitlines())


@MANY
@given(
    st.dictionaries(
        st.sampled_from(["SM_PROFILER_CONFIG", *(f"SM_PROFILER_CONFIG_{n}" for n in range(4))]), texts | damaged
    )
)
def test_environment(variables):
    text = result(config_from_environment, variables)
    if text:
        result(load_profile, text)
        assert config_from_environment(result(environment_for, text)) == text


@MANY
@given(
    st.dictionaries(
        st.sampled_from(["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"]),
        texts | numbers.filter(lambda number: abs(number) < 10**300).map(str),
    )
)
@example({"RANK": "²"})
@example({"RANK": "9" * 5000})
def test_rank(variables):
    rank = result(rank_from, variables)
    assert rank is None or 0 <= rank < 10**9


@MANY
@given(sources)
@example(HUGE)
def test_from_request(source):
    config = result(debugger.ProfilerConfig.from_request, source)
    if config is not None:
        result(config.explain)
        result(lambda: config.framework_profile_params and config.framework_profile_params.metrics_configs)
        result(to_request, config)
        result(agent_environment, config)


@MANY
@given(objects)
def test_rule_from_request(request_):
    rule = result(debugger.ProfilerRule.from_request, request_)
    if rule is not None:
        result(to_request, None, [rule])


@MANY
@given(objects, st.lists(objects, max_size=2), values)
@example(HUGE, [], None)
def test_requests(config, rules, path):
    request = result(to_request, config, s3_output_path=path)
    if request is not None:
        assert check_request("CreateTrainingJob", request, only=list(request)) == []
    result(agent_environment, config, {"MINE": "1"}, s3_output_path=path)
    assert all(isinstance(line, str) for line in result(check_request, "CreateTrainingJob", config) or ())
    result(check_request, "CreateTrainingJob", {"ProfilerRuleConfigurations": rules})


PARAMETERS = [
    *(
        "OutputDataConfig",
        "ResourceConfig",
        "Environment",
        "CheckpointConfig",
        "EnableNetworkIsolation",
        "ProfilerConfig",
    ),
    *("ProfilerRuleConfigurations", "TrainingJobDefinition", "TrainingJobDefinitions", "TrainingJobName", "RoleArn"),
]


@pytest.fixture(scope="module")
def handlers():
    """Handlers of attached boto3 clients, which change requests before botocore validates them."""
    config = debugger.ProfilerConfig(framework_profile_params=debugger.FrameworkProfile())
    rules = [debugger.ProfilerRule.custom("mine", "image:1", "ml.m5.large", 10)]
    return [
        _Adder(config, rules if backend == "service" else [], backend, "us-east-1", None)
        for backend in ("service", "agent")
    ]


@MANY
@given(st.dictionaries(st.sampled_from(PARAMETERS), values, max_size=6))
def test_attached_clients(handlers, params):
    for handler in handlers:
        for change in (handler.training, handler.tuning):
            changed = result(change, dict(params))
            assert changed is None or set(params) <= set(changed)


FACADE = {
    debugger.ProfilerConfig: "s3_output_path system_monitor_interval_millis disable_profiler",
    debugger.FrameworkProfile: "local_path file_max_size file_close_interval start_step num_steps start_unix_time duration",
    debugger.DataloaderProfilingConfig: "start_step num_steps start_unix_time duration metrics_regex",
    debugger.PythonProfilingConfig: "start_step duration python_profiler cprofile_timer",
}


@MANY
@given(st.sampled_from(list(FACADE)), st.data())
def test_facade_constructors(kind, data):
    names = st.sampled_from(FACADE[kind].split())
    made = result(kind, errors=SDK_ERRORS, **data.draw(st.dictionaries(names, values, max_size=4)))
    if made is not None and kind is debugger.ProfilerConfig:
        result(made.explain)
        result(to_request, made)


@MANY
@given(damaged | objects.map(lambda value: json.dumps(value, skipkeys=True)) | st.text(max_size=50), st.booleans())
def test_validate(text, isolated):
    output = io.StringIO()
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(text.encode("utf-8", "surrogatepass")))
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = result(main, ["validate", "-", *(["--network-isolation"] if isolated else [])])
    finally:
        sys.stdin = before
    assert code in (0, 1, 2)
    assert all(line.isprintable() for line in output.getvalue().splitlines())
    output.getvalue().encode()


@MANY
@given(damaged | objects.map(json.dumps) | st.just("[" * 100_000), st.none() | texts)
def test_settings_file(text, region):
    settings_path().write_text(text, encoding="utf-8", errors="surrogateescape" if text.isascii() else "replace")
    result(registered_image, region)
