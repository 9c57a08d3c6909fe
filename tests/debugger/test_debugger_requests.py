"""Objects from requests, explanations of configurations, and `sm-profiler validate`."""

import json
import os
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm_profiler.cli import main
from sm_profiler.config import explain
from sm_profiler.config.launched import Launched
from sm_profiler.debugger import (
    DataloaderProfilingConfig,
    DetailedProfilingConfig,
    FrameworkProfile,
    HorovodProfilingConfig,
    Profiler,
    ProfilerConfig,
    ProfilerRule,
    PythonProfiler,
    PythonProfilingConfig,
    SMDataParallelProfilingConfig,
    cProfileTimer,
    rule_configs,
)
from sm_profiler.errors import ConfigError
from sm_profiler.launch import agent_environment

windows = st.one_of(
    st.just({}),
    st.builds(lambda s, n: {"start_step": s, "num_steps": n}, st.integers(0, 99), st.integers(1, 9)),
    st.builds(lambda t, d: {"start_unix_time": t, "duration": d}, st.integers(0, 2**31), st.floats(0.5, 1e9)),
    st.builds(lambda d: {"duration": d}, st.integers(1, 99) | st.just(float("inf"))),
)
words = st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=10)
configs = st.fixed_dictionaries(
    {},
    optional={
        "detailed_profiling_config": windows.map(lambda w: DetailedProfilingConfig(**w)),
        "dataloader_profiling_config": st.builds(
            lambda w, r: DataloaderProfilingConfig(**w, metrics_regex=r), windows, words
        ),
        "python_profiling_config": st.builds(
            lambda w, p, t: PythonProfilingConfig(**w, python_profiler=p, cprofile_timer=t),
            windows,
            st.sampled_from(PythonProfiler),
            st.sampled_from(cProfileTimer),
        ),
        "horovod_profiling_config": windows.map(lambda w: HorovodProfilingConfig(**w)),
        "smdataparallel_profiling_config": windows.map(lambda w: SMDataParallelProfilingConfig(**w)),
    },
)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(configs, st.sampled_from([None, 100, 60000]), st.none() | words, st.booleans())
def test_round_trip(made, interval, path, disabled):
    config = ProfilerConfig(path, interval, FrameworkProfile(**made), disable_profiler=disabled)
    request = config._to_request_dict()
    back = ProfilerConfig.from_request(json.loads(json.dumps(request)))
    assert json.dumps(back._to_request_dict()) == json.dumps(request)
    if not disabled:
        assert back == config
    if made:
        given_configs = {one.name: one for one in made.values()}
        assert back.framework_profile_params.metrics_configs == given_configs


@pytest.mark.parametrize(
    "config", [ProfilerConfig(), ProfilerConfig(profile_params=Profiler(60)), ProfilerConfig(disable_profiler=True)]
)
def test_round_trip_without_framework_metrics(config):
    assert ProfilerConfig.from_request(config._to_request_dict()) == config


def test_reads_describe_answers_and_keys_in_other_case():
    config = ProfilerConfig("s3://b", 500, FrameworkProfile(start_step=3))
    request = config._to_request_dict()
    assert ProfilerConfig.from_request({"TrainingJobName": "j", "ProfilerConfig": request}) == config
    lowered = {key.lower(): value for key, value in request.items()}
    lowered["profilingparameters"] = {key.lower(): value for key, value in request["ProfilingParameters"].items()}
    assert ProfilerConfig.from_request(json.dumps(lowered)) == config
    rule = ProfilerRule.custom("n", "i", "ml.m5.large", 3, "s3://b/r.py", "R", "/out", "s3://o", {"a": "1"})
    assert ProfilerRule.from_request(rule.to_profiler_rule_config_dict()) == rule


@pytest.mark.parametrize("request_", ["{", "[]", 5, None])
def test_rejects_anything_but_an_object(request_):
    with pytest.raises(ConfigError):
        ProfilerConfig.from_request(request_)


def test_rejects_invalid_rules_and_metrics_configs():
    with pytest.raises(ConfigError, match="needs a RuleConfigurationName"):
        ProfilerRule.from_request({})
    broken = FrameworkProfile.from_request({"DetailedProfilingConfig": "nonsense"})
    with pytest.raises(ConfigError, match="DetailedProfilingConfig: "):
        _ = broken.metrics_configs
    with pytest.raises(ConfigError, match="start_step must be integer"):
        _ = FrameworkProfile.from_request({"DetailedProfilingConfig": '{"StartStep": -1}'}).metrics_configs


def test_explains_the_defaults():
    explanation = ProfilerConfig("s3://b/", 5000, FrameworkProfile()).explain(
        [ProfilerRule.sagemaker(rule_configs.ProfilerReport())]
    )
    assert str(explanation).splitlines() == [
        "System metrics are sampled every 5 seconds.",
        "Every step is recorded, its phases as often as the overhead budget allows, under /opt/ml/output/profiler.",
        "Step 5: operators and kernels.",
        "Step 7: data loader events.",
        "Steps 9 to 11: Python code, measured by cProfile by wall time, CPU time and time off the CPU in turn.",
        "Not collected: Horovod's timeline, the timeline of SageMaker's data parallel library.",
        "Rule ProfilerReport evaluates the profile.",
        "The profile is stored under s3://b/<job name>/profiler-output.",
    ]


@pytest.mark.parametrize(
    ("window", "words_"),
    [
        ({"num_steps": 3}, "Steps 0 to 2"),
        ({"start_step": 4}, "Step 4:"),
        ({"duration": 1}, "From the first step on, for 1 second:"),
        ({"duration": float("inf")}, "From the first step on, to the end of the job:"),
        ({"start_unix_time": 1_700_000_000}, "The first step at or after 2023-11-14 22:13:20 UTC:"),
        ({"start_unix_time": 1_700_000_000, "duration": 2.5}, "From 2023-11-14 22:13:20 UTC on, for 2.5 seconds:"),
    ],
)
def test_explains_windows(window, words_):
    assert words_ in str(ProfilerConfig(framework_profile_params=FrameworkProfile(**window)).explain())


def profile(**parameters):
    return ProfilerConfig(framework_profile_params=FrameworkProfile(**parameters))


def rules(number):
    return [ProfilerRule.custom(f"r{n}", "i", "ml.m5.large", 1) for n in range(number)]


def test_a_variable_that_is_not_set_here_is_odd(monkeypatch):
    config = ProfilerConfig("s3://bucket/$TEAM/${TEAM}/%u")
    assert [line for line in config.explain().odd if "TEAM" in line] == [
        "S3OutputPath: the environment variable TEAM is not set here; the hook stays off in a job without it"
    ]
    monkeypatch.setenv("TEAM", "nlp")
    assert "TEAM" not in str(config.explain().odd)
    assert not config.explain().wrong


@pytest.mark.parametrize(
    ("explained", "word"),
    [
        (
            lambda: ProfilerConfig(disable_profiler=True).explain(rules(1)),
            "profiler rules cannot be used while DisableProfiler",
        ),
        (lambda: ProfilerConfig().explain(rules(21)), "21 rules: the API accepts 20"),
        (
            lambda: ProfilerConfig.from_request({"ProfilingParameters": {"LocalPath": "/tmp/%q/%j"}}).explain(),
            "LocalPath: %q has no meaning",
        ),
        (lambda: ProfilerConfig("s3://bucket/%x").explain(), "S3OutputPath: %x has no meaning"),
        (lambda: ProfilerConfig("s3://bucket/$MY_TOKEN").explain(), "MY_TOKEN has the name of a secret"),
        (lambda: ProfilerConfig().explain(rules(1) * 2), "two rules are named r0"),
        (
            lambda: ProfilerConfig.from_request(
                {"ProfilingParameters": {"DetailedProfilingConfig": '{"StartStep": 1, "Duration": 2}'}}
            ).explain(),
            "exclude each other",
        ),
        (
            lambda: profile(dataloader_profiling_config=DataloaderProfilingConfig(metrics_regex="x" * 250)).explain(),
            "the API accepts 256",
        ),
        (
            lambda: ProfilerConfig().explain(
                [ProfilerRule("a", "i", None, None, None, None, {"rule_to_invoke": "CPUBottleneck", "treshold": 1})]
            ),
            "rule a: unknown parameter treshold",
        ),
        (
            lambda: ProfilerConfig().explain(
                [
                    ProfilerRule(
                        "a",
                        "i",
                        None,
                        None,
                        None,
                        None,
                        {"rule_to_invoke": "ProfilerReport", "cpubottleneck_threshold": 1, "Nothing_x": 2},
                    )
                ]
            ),
            "rule a: unknown parameter Nothing_x",
        ),
    ],
)
def test_lists_what_is_wrong(explained, word):
    explanation = explained()
    assert sum(word in line for line in explanation.wrong) == 1, explanation
    assert len(explanation.wrong) <= 1 + (word == "two rules are named r0")


def test_reports_an_interval_that_the_api_rejects():
    with pytest.warns(UserWarning, match="the API accepts"):
        config = ProfilerConfig(system_monitor_interval_millis=300)
    assert "300 is not one of 100, 200" in config.explain().wrong[0]


WINDOW = '{"StartStep": 5, "NumSteps": 2}'


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"DisableProfiler": "false"}, "DisableProfiler: the API expects true or false, not the text 'false'"),
        ({"ProfilingIntervalInMilliseconds": "500"}, "ProfilingIntervalInMilliseconds: the API expects a number, not"),
        ({"S3OutputPath": "s3://my bucket!/x"}, "S3OutputPath: no bucket can have the name in 's3://my bucket!/x'"),
        ({"S3OutputPath": "s3:///x"}, "S3OutputPath: no bucket can have the name"),
        ({"S3OutputPath": "s3://my-bucket.x/y"}, ""),
        ({"S3OutputPath": "s3://arn:aws:s3:us-east-1:123456789012:accesspoint/mine/y"}, ""),
    ],
)
def test_what_the_hook_reads_and_the_api_rejects_is_wrong(config, line):
    wrong = explain({"DisableProfiler": False, **config}).wrong
    assert len(wrong) == bool(line)
    assert line in "".join(wrong)


@pytest.mark.parametrize(
    ("config", "contradicted", "stated"),
    [
        ({"ProfilingIntervalInMilliseconds": 300}, "sampled every 300 ms.", "it rejects this interval"),
        ({"S3OutputPath": "bucket/x"}, "is stored under bucket", "S3OutputPath: expected an address such as s3://"),
        (
            {"ProfilingParameters": {"HorovodProfilingConfig": WINDOW}},
            "6: Horovod's timeline",
            "Python code, Horovod's timeline",
        ),
        ({"DisableProfiler": True}, "Rule r0 evaluates", "cannot be used while DisableProfiler is true"),
        ({"ProfilingParameters": {"RotateMaxFileSizeInBytes": "-4"}}, "e+07", "using 10485760"),
    ],
)
def test_lines_of_an_explanation_do_not_contradict_each_other(config, contradicted, stated):
    text = str(explain(config, [{"RuleConfigurationName": "r0"}]))
    assert contradicted not in text
    assert stated in text


@pytest.mark.parametrize(
    ("explained", "word"),
    [
        (lambda: profile(start_unix_time=1000, duration=5).explain(), "in the past"),
        (
            lambda: profile(start_unix_time=2**36).explain(job={"StoppingCondition": {"MaxRuntimeInSeconds": 60}}),
            "after the job's time limit of 60 seconds",
        ),
        (lambda: profile(start_unix_time=170_000_000_000, duration=5).explain(), "looks like milliseconds"),
        (
            lambda: profile(detailed_profiling_config=DetailedProfilingConfig(num_steps=500)).explain(),
            "500 steps of operators",
        ),
        (
            lambda: profile(dataloader_profiling_config=DataloaderProfilingConfig(metrics_regex="Dataset")).explain(),
            "matches none",
        ),
    ],
)
def test_lists_what_is_odd(explained, word):
    explanation = explained()
    assert any(word in line for line in explanation.odd), explanation
    assert explanation.wrong == []


def write(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_validate_explains_a_configuration(tmp_path, capsys):
    assert main(["validate", write(tmp_path, profile()._to_request_dict())]) == 0
    assert "Step 5: operators and kernels." in capsys.readouterr().out


def test_validate_accepts_a_whole_request(tmp_path, capsys):
    request = {
        "ProfilerConfig": profile()._to_request_dict(),
        "ProfilerRuleConfigurations": [one.to_profiler_rule_config_dict() for one in rules(21)],
        "EnableNetworkIsolation": True,
    }
    assert main(["validate", write(tmp_path, request)]) == 1
    shown = capsys.readouterr().out
    assert "wrong: 21 rules" in shown
    assert "/opt/ml/output/data" in shown


@pytest.mark.parametrize(("flags", "folder"), [([], "/opt/ml/output/data"), (["--checkpoints"], "/opt/ml/checkpoints")])
def test_validate_prints_the_folder_for_jobs_without_network(tmp_path, capsys, flags, folder):
    path = write(tmp_path, profile()._to_request_dict())
    assert main(["validate", path, "--network-isolation", *flags]) == 0
    shown = capsys.readouterr().out
    assert f"written under {folder}, which the service {'syncs' if flags else 'stores'}" in shown


def test_validate_lists_all_problems_first(tmp_path, capsys):
    config = {
        "S3OutputPat": "s3://b",
        "LocalPath": "/x",
        "Colour": 1,
        "ProfilingParameters": {
            "DetaildProfilingConfig": "{}",
            "PythonProfilingConfig": '{"StartStep": -1, "NumSteps": 0, "ProfilerName": "perf", "Colour": 1, }',
        },
    }
    assert main(["validate", write(tmp_path, config)]) == 1
    lines = capsys.readouterr().out.splitlines()
    off = "this collector stays off"
    assert [line for line in lines if line.startswith("wrong: ")] == lines[:8]
    assert lines[:8] == [
        f"wrong: PythonProfilingConfig.StartStep: expected an integer of at least 0, found -1; {off}",
        f"wrong: PythonProfilingConfig.NumSteps: expected an integer of at least 1, found 0; {off}",
        f"wrong: PythonProfilingConfig.ProfilerName: expected one of cprofile, pyinstrument, found 'perf'; {off}",
        "wrong: PythonProfilingConfig.Colour: unknown, ignored",
        "wrong: S3OutputPat: unknown, ignored; did you mean S3OutputPath?",
        "wrong: LocalPath: unknown, ignored; it belongs in ProfilingParameters",
        "wrong: Colour: unknown, ignored",
        "wrong: ProfilingParameters.DetaildProfilingConfig: unknown, ignored; did you mean DetailedProfilingConfig?",
    ]
    assert lines[8].startswith("System metrics")


def test_validate_prints_no_control_characters(tmp_path, capsys):
    red = "\x1b[31m\u202e"
    request = {
        "ProfilerConfig": {
            red: 1,
            "S3OutputPath": f"s3://{red}",
            "ProfilingParameters": {
                red: red,
                "LocalPath": red,
                "DataloaderProfilingConfig": f'{{"MetricsRegex": "{red}"}}',
            },
        },
        "ProfilerRuleConfigurations": [
            {
                "RuleConfigurationName": red,
                "RuleEvaluatorImage": red,
                "RuleParameters": {"rule_to_invoke": "BatchSize", red: 1},
            }
        ],
    }
    assert main(["validate", write(tmp_path, request)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert all(line.isprintable() for line in lines)


@pytest.mark.timeout(20)
def test_validate_of_hundred_thousand_keys_and_rules_is_quick(tmp_path, capsys):
    rule = {"RuleConfigurationName": "r", "RuleEvaluatorImage": "i", "RuleParameters": {"a": 1}}
    request = {
        "ProfilerConfig": {f"S3OutputPat{number}": number for number in range(100_000)},
        "ProfilerRuleConfigurations": [
            {**rule, "RuleConfigurationName": f"r{number % 60_000}"} for number in range(100_000)
        ],
    }
    started = time.process_time()
    assert main(["validate", write(tmp_path, request)]) == 1
    assert time.process_time() - started < 8
    assert "99950 more unknown keys, ignored" in capsys.readouterr().out


def test_validate_stops_reading_endless_files(capsys):
    assert main(["validate", "/dev/zero"]) == 2
    assert "/dev/zero is larger than 16 MB" in capsys.readouterr().err


def test_validate_reads_standard_input_as_utf_8_in_any_locale():
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    config = '{"ProfilingParameters": {"LocalPath": "/\N{LATIN SMALL LETTER E WITH ACUTE}"}}'
    shown = subprocess.run(
        [sys.executable, "-m", "sm_profiler", "validate", "-"],
        input=config.encode(), capture_output=True, env=environment, check=True,
    )  # fmt: skip
    assert b"allows, under /\\xe9." in shown.stdout


def test_validate_documents_its_exit_codes(capsys):
    with pytest.raises(SystemExit):
        main(["validate", "--help"])
    assert "exit codes: 0 nothing is wrong; 1" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("content", ["{", "[]", "5", ""])
def test_validate_rejects_anything_but_an_object_in_one_line(tmp_path, capsys, content):
    assert main(["validate", write(tmp_path, content)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1


def test_validate_reports_a_missing_file(capsys):
    assert main(["validate", "/nowhere/config.json"]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_explain_has_the_parameters_of_every_rule():
    import inspect
    from importlib import import_module

    import attrs

    rules_module = import_module("sm_profiler.rules")
    for rule, names in import_module("sm_profiler.config.explaining")._RULE_PARAMETERS.items():
        known = set(names.split())
        assert {field.name for field in attrs.fields(getattr(rules_module, rule).Parameters)} - {
            "scan_interval_us"
        } == known
        signature = inspect.signature(getattr(rule_configs, rule).__init__)
        assert set(signature.parameters) - {"self", "scan_interval_us"} == known


JOB = {
    "TrainingJobName": "j",
    "OutputDataConfig": {"S3OutputPath": "s3://b/", "KmsKeyId": "arn:aws:kms:us-east-1:1:key/k"},
}
EVERY_STEP = "Every step is recorded"


@pytest.mark.parametrize(
    ("environment", "odd", "recorded"),
    [
        ({"SM_PROFILER_AUTO": "1"}, None, True),
        ({"SM_PROFILER_AUTO": "0"}, "is not on in the job's environment, but '0': the hook stays off\n", False),
        ({"SM_PROFILER_AUTO": "maybe"}, "is not on in the job's environment, but 'maybe': the hook stays off\n", False),
        ({}, "is not on in the job's environment: the hook stays off, unless the image has it", True),
        (None, "is not on in the job's environment: the hook stays off, unless the image has it", True),
    ],
)
@pytest.mark.parametrize("backend", ["service", "agent"])
def test_validate_names_a_hook_that_the_job_leaves_off(tmp_path, capsys, environment, odd, recorded, backend):
    config = ProfilerConfig("s3://b/", framework_profile_params=FrameworkProfile())
    request = JOB | {"ProfilerConfig": config._to_request_dict()}
    if environment is not None:
        request["Environment"] = environment
    if backend == "agent":
        carried = agent_environment(config, kms_key_id="k")
        del carried["SM_PROFILER_AUTO"]
        request |= {"ProfilerConfig": {"DisableProfiler": True}, "Environment": {**carried, **(environment or {})}}
    assert main(["validate", write(tmp_path, request)]) == 0
    shown = capsys.readouterr().out
    assert ("odd:" in shown) == (odd is not None)
    assert (odd or "") in shown
    assert (EVERY_STEP in shown) == recorded
    if odd and environment and backend == "service":
        launched = Launched.of(request)
        assert launched.why_off in launched.why_no_steps()[0]  # of a report
        assert launched.why_off in shown


def test_validate_names_a_key_that_the_agent_does_not_use(tmp_path, capsys):
    config = ProfilerConfig("s3://b/", framework_profile_params=FrameworkProfile())
    for key, odd in ((None, True), ("arn:aws:kms:us-east-1:1:key/k", False)):
        environment = agent_environment(config, kms_key_id=key)
        main(["validate", write(tmp_path, JOB | {"Environment": environment})])
        shown = capsys.readouterr().out
        assert ("odd: KmsKeyId: the job's results are encrypted with 'arn:aws:kms:us-east-1:1:key/k'" in shown) == odd
        assert ("kms_key_id= to agent_environment" in shown) == odd
        assert "stored under s3://b/" in shown
