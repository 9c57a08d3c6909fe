"""Loading of a profilerconfig.json: invalid fields are reported by name, the others are used."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm_profiler.config import CollectorConfig, config_from_environment, environment_for, explain, load_profile
from sm_profiler.errors import ConfigError

FULL = {
    "S3OutputPath": "s3://Bucket/Path",
    "DisableProfiler": False,
    "ProfilingIntervalInMilliseconds": 200,
    "ProfilingParameters": {
        "LocalPath": "/opt/ml/output/Profiler",
        "RotateMaxFileSizeInBytes": "1000",
        "RotateFileCloseIntervalInSeconds": "0.5",
        "FileOpenFailThreshold": "3",
        "DetailedProfilingConfig": '{"StartStep": 0, "NumSteps": 2, }',
        "DataloaderProfilingConfig": '{"StartStep": 7, "NumSteps": 1, "MetricsRegex": "Get\\d", }',
        "PythonProfilingConfig": '{"Duration": 3, "ProfilerName": "cprofile", "cProfileTimer": "default", }',
        "HorovodProfilingConfig": '{"StartTimeInSecSinceEpoch": 5, "Duration": inf, }',
        "SMDataParallelProfilingConfig": '{"StartStep": 0, "NumSteps": None, }',
    },
}


def one(config: str, name: str = "DetailedProfilingConfig"):
    return load_profile({"ProfilingParameters": {name: config}})


def test_reads_every_field():
    profile = load_profile(FULL)
    assert (profile.s3_output_path, profile.interval_ms, profile.disabled) == ("s3://Bucket/Path", 200, False)
    assert (profile.local_path, profile.rotate_max_bytes) == ("/opt/ml/output/Profiler", 1000)
    assert (profile.rotate_close_seconds, profile.fail_threshold) == (0.5, 3)
    assert profile.problems == []
    assert profile.hook_on
    assert profile.collectors == {
        "detailed": CollectorConfig(start_step=0, num_steps=2),
        "dataloader": CollectorConfig(start_step=7, num_steps=1, metrics_regex=r"Get\d"),
        "python": CollectorConfig(duration=3, timer="default"),
        "horovod": CollectorConfig(start_time=5, duration=float("inf")),
        "smddp": CollectorConfig(start_step=0),
    }
    assert profile.collectors["python"].by_time
    assert not profile.collectors["detailed"].by_time


def swapped(value):
    if isinstance(value, dict):
        return {key.swapcase(): swapped(inner) for key, inner in value.items()}
    return value


def test_matches_keys_in_any_case_and_keeps_values():
    profile = load_profile(json.dumps(swapped(FULL)))
    assert (profile.s3_output_path, profile.local_path) == ("s3://Bucket/Path", "/opt/ml/output/Profiler")
    assert profile.collectors == load_profile(FULL).collectors


def test_accepts_text_bytes_and_a_byte_order_mark():
    text = json.dumps(FULL)
    for form in (text, text.encode(), "\ufeff" + text, b"\xef\xbb\xbf" + text.encode()):
        assert load_profile(form) == load_profile(FULL)


def test_finds_the_configuration_in_a_describe_answer():
    assert load_profile({"TrainingJobName": "j", "ProfilerConfig": FULL}) == load_profile(FULL)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", b"\xff", "[" * 100_000])
def test_rejects_anything_but_an_object_in_one_line(text):
    with pytest.raises(ConfigError) as caught:
        load_profile(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"DisableProfiler": True}, "DisableProfiler is true"),
        ({"DisableProfiler": "True", "ProfilingParameters": {"LocalPath": "x"}}, "DisableProfiler is true"),
        ({}, "empty"),
        ({"ProfilingParameters": {}}, "empty"),
        (
            {"ProfilingParameters": {"CPUProfilingDuration": "3600", "SMPFileRotationSecs": "600"}},
            "CPUProfilingDuration",
        ),
    ],
)
def test_reports_why_the_hook_stays_off(config, why):
    profile = load_profile(config)
    assert not profile.hook_on
    assert why in profile.off


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ("nonsense", "DetailedProfilingConfig"),
        ('{"StartStep": -1, }', "DetailedProfilingConfig.StartStep"),
        ('{"StartStep": 1.5, }', "DetailedProfilingConfig.StartStep"),
        ('{"StartStep": inf, }', "DetailedProfilingConfig.StartStep"),
        ('{"NumSteps": 0, }', "DetailedProfilingConfig.NumSteps"),
        ('{"Duration": 0, }', "DetailedProfilingConfig.Duration"),
        ('{"Duration": nan, }', "DetailedProfilingConfig.Duration"),
        ('{"DurationInSeconds": -2, }', "DetailedProfilingConfig.DurationInSeconds"),
        ('{"StartTimeInSecSinceEpoch": inf, }', "DetailedProfilingConfig.StartTimeInSecSinceEpoch"),
        ('{"StartStep": 5, "Duration": 2, }', "DetailedProfilingConfig.StartStep"),
        ('{"StartStep": 5, "MetricsRegex": "(", }', "DetailedProfilingConfig.MetricsRegex"),
        ('{"StartStep": 5, "ProfilerName": "perf", }', "DetailedProfilingConfig.ProfilerName"),
        ('{"StartStep": 5, "cProfileTimer": "sun", }', "DetailedProfilingConfig.cProfileTimer"),
    ],
)
def test_an_invalid_collector_is_off_and_reported_once(config, field):
    parameters = {"DetailedProfilingConfig": config, "HorovodProfilingConfig": '{"StartStep": 1, }'}
    profile = load_profile({"ProfilingParameters": parameters})
    assert set(profile.collectors) == {"horovod"}
    assert len(profile.problems) == 1
    assert profile.problems[0].startswith(field + ":")


def test_accepts_the_old_name_of_duration():
    assert one('{"DurationInSeconds": 2.5, }').collectors["detailed"] == CollectorConfig(duration=2.5)


def test_a_config_without_a_range_uses_the_default_window():
    assert one('{"MetricsRegex": "x", }', "DataloaderProfilingConfig").collectors["dataloader"] == CollectorConfig(
        start_step=7, num_steps=1, metrics_regex="x", default=True
    )
    python = one('{"DefaultProfiling": True, }', "PythonProfilingConfig").collectors["python"]
    assert (python.start_step, python.num_steps, python.timer, python.default) == (9, 3, "default", True)


def test_an_empty_config_is_off():
    profile = one("{}")
    assert profile.collectors == {}
    assert profile.problems == []


def test_accepts_numbers_as_strings_and_booleans():
    assert one('{"StartStep": "5", "NumSteps": True, }').collectors["detailed"] == CollectorConfig(5, 1)


def test_unknown_keys_are_reported_and_ignored():
    profile = one('{"StartStep": 5, "Colour": "red", }')
    assert "detailed" in profile.collectors
    assert profile.problems == []
    assert profile.warnings == ["unknown keys of the configuration are ignored: DetailedProfilingConfig.Colour"]


def test_all_unknown_keys_are_named_in_one_line_with_what_may_be_meant():
    """Those at the top level and among the parameters were ignored without a word."""
    parameters = {"LocalPaht": "/x", "PythonProfilingConfig": '{"StartStpe": 5, }', "SMPFile": 1}
    profile = load_profile(
        {"S3OutputPat": "s3://b", "StartStep": 3, "LocalPath": "/y", "ProfilingParameters": parameters}
    )
    (line,) = profile.warnings
    assert line == (
        "unknown keys of the configuration are ignored: PythonProfilingConfig.StartStpe (did you mean StartStep?), "
        "S3OutputPat (did you mean S3OutputPath?), StartStep, LocalPath (it belongs in ProfilingParameters), "
        "ProfilingParameters.LocalPaht (did you mean LocalPath?), ProfilingParameters.SMPFile"
    )
    assert load_profile(FULL).warnings == []
    assert load_profile({"TrainingJobName": "j", "RoleArn": "r"}).unknown == {}
    many = load_profile({"S3OutputPath": "s3://b", **dict.fromkeys(map(str, range(1000)))})
    assert many.warnings[0].endswith("9 and 990 more")


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"ProfilingIntervalInMilliseconds": 300}, "ProfilingIntervalInMilliseconds"),
        ({"ProfilingIntervalInMilliseconds": "soon"}, "ProfilingIntervalInMilliseconds"),
        ({"ProfilingParameters": {"RotateMaxFileSizeInBytes": "big"}}, "RotateMaxFileSizeInBytes"),
        ({"ProfilingParameters": {"RotateMaxFileSizeInBytes": "inf"}}, "RotateMaxFileSizeInBytes"),
        ({"ProfilingParameters": {"RotateFileCloseIntervalInSeconds": "0"}}, "RotateFileCloseIntervalInSeconds"),
        ({"ProfilingParameters": {"FileOpenFailThreshold": []}}, "FileOpenFailThreshold"),
        ({"ProfilingParameters": {"LocalPath": 3}}, "LocalPath"),
        ({"S3OutputPath": 3}, "S3OutputPath"),
        ({"DisableProfiler": "maybe"}, "DisableProfiler"),
        ({"ProfilingParameters": []}, "ProfilingParameters"),
        ({"ProfilingParameters": {"DetailedProfilingConfig": 5}}, "DetailedProfilingConfig"),
    ],
)
def test_other_invalid_fields_are_reported_and_use_their_defaults(config, field):
    profile = load_profile(config)
    assert [problem.partition(":")[0] for problem in profile.problems] == [field]
    assert profile.rotate_max_bytes == 10485760
    assert profile.local_path == "/opt/ml/output/profiler"


def test_reports_an_object_without_any_known_key():
    (problem,) = load_profile({"LocalPath": "/x"}).problems
    assert problem.startswith("ProfilerConfig: has none of S3OutputPath")
    assert load_profile({}).problems == []


@pytest.mark.parametrize("number", ["²", "9" * 310, "9" * 5000, "1e300", 10**310, "٣" * 400, "1" + "_0" * 2000])
def test_rejects_numbers_beyond_64_bits_and_other_digits(number):
    fields = ("RotateMaxFileSizeInBytes", "FileOpenFailThreshold")
    steps = {"StartStep": number, "NumSteps": number}
    profile = load_profile(
        {
            "ProfilingIntervalInMilliseconds": number,
            "ProfilingParameters": {**dict.fromkeys(fields, number), "DetailedProfilingConfig": steps},
        }
    )
    assert [problem.partition(":")[0] for problem in profile.problems] == [
        *fields,
        "DetailedProfilingConfig.StartStep",
        "DetailedProfilingConfig.NumSteps",
        "ProfilingIntervalInMilliseconds",
    ]
    assert all(len(problem) < 250 for problem in profile.problems)
    assert (profile.rotate_max_bytes, profile.fail_threshold, profile.interval_ms) == (10485760, 50, 500)


def test_problems_have_no_control_characters():
    red = "\x1b[31m"
    profile = load_profile({red: 1, "ProfilingParameters": {"DetailedProfilingConfig": {red: red}, "LocalPath": [red]}})
    assert len(profile.problems) == 1
    assert len(profile.unknown) == 2
    assert all(problem.isprintable() for problem in profile.warnings)


def test_accepts_an_infinite_close_interval():
    assert load_profile({"ProfilingParameters": {"RotateFileCloseIntervalInSeconds": "inf"}}).problems == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from([*FULL, *FULL["ProfilingParameters"], "StartStep"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(names, json_values | st.dictionaries(names, json_values, max_size=4), max_size=5))
def test_loads_any_object(config):
    profile = load_profile(config)
    assert all("\n" not in problem and problem for problem in profile.problems)


@settings(deadline=None)
@given(st.text(max_size=3000))
def test_the_environment_carries_any_text(text):
    variables = environment_for(text)
    assert all(len(value) <= 512 for value in variables.values())
    assert (config_from_environment({**variables, "OTHER": "x"}) or "") == text


def test_rejects_a_configuration_too_long_for_the_environment():
    with pytest.raises(ConfigError, match="too long"):
        environment_for("x" * 512 * 100)
    assert config_from_environment({}) is None


@pytest.mark.parametrize(
    ("config", "job", "line"),
    [
        ({"LocalPath": "/tmp/x"}, {}, "No S3OutputPath is set: the profile stays in /tmp/x."),
        ({}, {"ProfilerConfig": {}}, "No S3OutputPath is set: an Estimator uses the job's output path, boto3 does not."),
        ({}, {}, "No S3OutputPath is set: in SageMaker, an Estimator uses the job's output path, boto3 does not; elsewhere, the profile stays on the machine, in LocalPath."),
    ],
)  # fmt: skip
def test_without_a_bucket_the_words_fit_the_place(config, job, line):
    """On a cluster, `sm-profiler validate` spoke of Estimators and boto3."""
    assert explain({"ProfilingParameters": config}, job=job).does[-1] == line
