"""The objects: isinstance in both import orders, copies, pickles, equality, images and filtered log messages."""

import copy
import json
import logging
import os
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import sm_profiler.debugger as facade
from sm_profiler.debugger import (
    DataloaderProfilingConfig,
    DetailedProfilingConfig,
    FrameworkProfile,
    Profiler,
    ProfilerConfig,
    ProfilerRule,
    PythonProfiler,
    PythonProfilingConfig,
    StepRange,
    TimeRange,
    cProfileTimer,
    rule_configs,
)
from sm_profiler.errors import ConfigError
from sm_profiler.launch import to_request
from sm_profiler.settings import settings_path

# the SDK v2 advertises version 3 when it is imported, and warnings are errors here
pytestmark = pytest.mark.filterwarnings("ignore:You are using the SageMaker Python SDK v2")

ROOT = Path(__file__).parents[2]

MADE = [
    ProfilerRule.sagemaker(rule_configs.ProfilerReport(CPUBottleneck_threshold=30)),
    ProfilerRule.custom("n", "i", "ml.m5.large", 5, rule_parameters={"a": 1}),
    FrameworkProfile(start_step=3),
    ProfilerConfig(s3_output_path="s3://b", framework_profile_params=FrameworkProfile()),
    Profiler(),
    DetailedProfilingConfig(duration=2.5),
    DataloaderProfilingConfig(metrics_regex="x"),
    PythonProfilingConfig(python_profiler=PythonProfiler.PYINSTRUMENT),
    StepRange(1, 2),
    TimeRange(1, 2),
    PythonProfiler.CPROFILE,
    cProfileTimer.DEFAULT,
]
SDK_ORDERS = """
import sys, pickle, copy, warnings
warnings.simplefilter("ignore")
order, package = sys.argv[1:]
import importlib
def sdk(module=""):
    return importlib.import_module(package + module)
if order == "theirs first":
    sdk()
from sm_profiler.debugger import *
rule = ProfilerRule.sagemaker(rule_configs.ProfilerReport())
profile = FrameworkProfile(start_step=2)
config = ProfilerConfig(framework_profile_params=profile)
python = PythonProfilingConfig(python_profiler=PythonProfiler.PYINSTRUMENT)
S = sdk()
assert isinstance(rule, S.ProfilerRule) and isinstance(rule, S.RuleBase) and not isinstance(rule, S.Rule)
assert isinstance(profile, S.FrameworkProfile) and isinstance(config, S.ProfilerConfig)
assert isinstance(python, S.PythonProfilingConfig) and isinstance(StepRange(1, 2), sdk(".metrics_config").StepRange)
assert isinstance(python.range, sdk(".metrics_config").StepRange) and isinstance(Profiler(), S.Profiler)
assert isinstance(rule, ProfilerRule) and not isinstance(profile, S.ProfilerRule)
# ours in theirs
assert S.ProfilerConfig(framework_profile_params=profile)._to_request_dict() == config._to_request_dict()
assert S.ProfilerConfig(profile_params=Profiler())._to_request_dict()["ProfilingParameters"]
assert S.FrameworkProfile(python_profiling_config=python).profiling_parameters == FrameworkProfile(python_profiling_config=python).profiling_parameters
assert S.PythonProfilingConfig(python_profiler=PythonProfiler.PYINSTRUMENT).cprofile_timer is None
assert S.PythonProfilingConfig(cprofile_timer=cProfileTimer.CPU_TIME).to_json_string() == PythonProfilingConfig(cprofile_timer=cProfileTimer.CPU_TIME).to_json_string()
# theirs in ours
theirs = S.FrameworkProfile(start_step=2)
assert ProfilerConfig(framework_profile_params=theirs)._to_request_dict() == config._to_request_dict()
assert ProfilerConfig(profile_params=S.Profiler())._to_request_dict()["ProfilingParameters"]
assert FrameworkProfile(python_profiling_config=S.PythonProfilingConfig()).profiling_parameters == S.FrameworkProfile(python_profiling_config=S.PythonProfilingConfig()).profiling_parameters
assert PythonProfilingConfig(python_profiler=S.PythonProfiler.PYINSTRUMENT, cprofile_timer=S.cProfileTimer.CPU_TIME).cprofile_timer is None
assert PythonProfiler.CPROFILE == S.PythonProfiler.CPROFILE and S.PythonProfiler.CPROFILE == PythonProfiler.CPROFILE
assert hash(PythonProfiler.CPROFILE) == hash(S.PythonProfiler.CPROFILE) and PythonProfiler.CPROFILE != S.PythonProfiler.PYINSTRUMENT
class Mine(ProfilerRule):
    pass
assert isinstance(Mine(1, 2, 3, 4, 5, 6, 7), S.ProfilerRule)
for thing in (rule, profile, config, python, PythonProfiler.CPROFILE, python.range, Mine(1, 2, 3, 4, 5, 6, 7)):
    for made in (copy.copy(thing), copy.deepcopy(thing), *([pickle.loads(pickle.dumps(thing, p)) for p in range(6)])):
        assert type(made) is type(thing) and made == thing
for name in ("Rule", "RuleBase", "CollectionConfig", "DebuggerHookConfig", "TensorBoardOutputConfig", "DEBUGGER_FLAG", "framework_name"):
    import sm_profiler.debugger as D
    assert getattr(D, name) is getattr(S, name) and getattr(D.debugger, name) is getattr(S, name)
print("fine")
"""


@pytest.mark.first(2)
@pytest.mark.parametrize("order", ["ours first", "theirs first"])
@pytest.mark.parametrize(
    "package",
    [
        pytest.param("sagemaker.debugger", marks=pytest.mark.sdk2, id="v2"),
        pytest.param("sagemaker.core.debugger", marks=pytest.mark.sdk3, id="v3"),
    ],
)
def test_isinstance_holds_in_both_import_orders(request, package, order):
    python = request.getfixturevalue("sdk3_python") if ".core." in package else sys.executable
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    shown = subprocess.run(
        [python, "-c", SDK_ORDERS, order, package], capture_output=True, text=True, check=False, env=env
    )
    assert shown.stdout.strip().endswith("fine"), shown.stderr[-2000:]


def pickled(thing, protocol):
    return pickle.loads(pickle.dumps(thing, protocol))  # noqa: S301 - our own bytes


@pytest.mark.parametrize("thing", MADE, ids=lambda thing: type(thing).__name__)
def test_copies_are_equal_and_keep_their_class(thing):
    copies = [copy.copy(thing), copy.deepcopy(thing)] + [pickled(thing, n) for n in range(6)]
    for made in copies:
        assert type(made) is type(thing)
        assert made == thing
        assert repr(made) == repr(thing)


@pytest.mark.parametrize("thing", MADE, ids=lambda thing: type(thing).__name__)
def test_different_objects_differ(thing):
    assert all(thing != other for other in MADE if other is not thing)
    assert thing != "text"


def test_repr_shows_all_fields():
    assert repr(DetailedProfilingConfig(start_step=2)) == (
        "DetailedProfilingConfig(name='DetailedProfilingConfig', range=StepRange(start_step=2, num_steps=1))"
    )


def test_equal_objects_have_equal_hashes():
    assert len({FrameworkProfile(), FrameworkProfile(), ProfilerConfig(), StepRange(1, 2), StepRange(1, 2)}) == 3


def test_attributes_can_be_assigned():
    config = ProfilerConfig(framework_profile_params=FrameworkProfile())
    config.s3_output_path = "s3://b/p"
    config.framework_profile_params.profiling_parameters = {}
    config.note = "anything"
    assert config._to_request_dict() == {
        "S3OutputPath": "s3://b/p",
        "DisableProfiler": False,
        "ProfilingParameters": {},
    }


def test_building_a_request_does_not_change_the_rule():
    base = rule_configs.CPUBottleneck(threshold=40)
    rule = ProfilerRule.sagemaker(base)
    assert rule.to_profiler_rule_config_dict()["RuleParameters"]["threshold"] == "40"
    assert base.rule_parameters["threshold"] == 40


def test_warns_of_intervals_that_the_api_rejects():
    with pytest.warns(UserWarning, match="100, 200, 500, 1000, 5000, 60000"):
        ProfilerConfig(system_monitor_interval_millis=300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fine in (100, 60000, None, object()):
            ProfilerConfig(system_monitor_interval_millis=fine)


def test_has_the_rules_that_smdebug_rulesconfig_does_not_export():
    loader = ProfilerRule.sagemaker(rule_configs.Dataloader(min_threshold=60))
    assert loader.to_profiler_rule_config_dict()["RuleParameters"]["min_threshold"] == "60"
    overall = ProfilerRule.sagemaker(rule_configs.OverallFrameworkMetrics())
    assert overall.to_profiler_rule_config_dict()["RuleParameters"] == {
        "scan_interval_us": "60000000",
        "rule_to_invoke": "OverallFrameworkMetrics",
    }
    with pytest.raises(AssertionError, match="positive"):
        rule_configs.OverallFrameworkMetrics(scan_interval_us=0)
    assert rule_configs.vanishing_gradient is not None
    assert {"Dataloader", "OverallFrameworkMetrics", "ProfilerReport"} <= set(dir(rule_configs))
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = rule_configs.Nonsense


def test_names_outside_profiling_need_the_sdk():
    program = (
        "import sys; sys.modules['sagemaker'] = None\n"
        "import sm_profiler.debugger as d\n"
        "try: d.Rule\n"
        "except AttributeError as error: print(error)\n"
        "try: d.get_rule_container_image_uri('r', 'us-east-1')\n"
        "except d.debugger.ConfigError as error: print(error)"
    )
    env = {key: value for key, value in os.environ.items() if key != "SM_PROFILER_RULE_IMAGE"}
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    first, second = shown.stdout.splitlines()
    assert "pip install 'sagemaker<3'" in first
    assert "SM_PROFILER_RULE_IMAGE" in second


@pytest.fixture
def settings(monkeypatch, tmp_path):
    monkeypatch.delenv("SM_PROFILER_RULE_IMAGE", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("SM_PROFILER_SETTINGS", str(tmp_path / "config.json"))
    return monkeypatch


def image(region="us-east-1", **kwargs):
    return facade.get_rule_container_image_uri("ProfilerReport", region, **kwargs)


@pytest.mark.sdk2
def test_image_precedence_is_argument_environment_file_sdk(settings):
    assert image().startswith("503895931360.dkr.ecr.us-east-1.amazonaws.com/sagemaker-debugger-rules")
    settings_path().write_text('{"rule_image": "file/image:1"}')
    assert image() == "file/image:1"
    settings_path().write_text('{"rule_image": {"*": "file/image:1", "cn-north-1": "china/image:1"}}')
    assert (image(), image("cn-north-1")) == ("file/image:1", "china/image:1")
    settings.setenv("SM_PROFILER_RULE_IMAGE", "1.dkr.ecr.{region}.amazonaws.com/own:2")
    assert image("eu-west-1") == "1.dkr.ecr.eu-west-1.amazonaws.com/own:2"
    assert image(image_uri="argument") == "argument"
    settings.delenv("SM_PROFILER_RULE_IMAGE")
    settings_path().write_text("{}")
    with pytest.raises(ValueError, match="Unsupported region"):
        image("mars-north-1")


@pytest.mark.sdk2
def test_sagemaker_profilers_job_keeps_its_image(settings):
    settings.setenv("SM_PROFILER_RULE_IMAGE", "own:1")
    name = facade.get_default_profiler_processing_job().name
    assert "detailed-profiler-processing" in facade.get_rule_container_image_uri(name, "us-west-2")


def test_built_in_rules_use_the_registered_image(settings):
    assert ProfilerRule.sagemaker(rule_configs.ProfilerReport()).image_uri == "DEFAULT_RULE_EVALUATOR_IMAGE"
    settings.setenv("SM_PROFILER_RULE_IMAGE", "own/rules:1")
    rule = ProfilerRule.sagemaker(rule_configs.ProfilerReport())
    assert (rule.image_uri, rule.instance_type, rule.volume_size_in_gb) == ("own/rules:1", "ml.t3.medium", 30)


def test_the_registered_image_replaces_awss_when_an_estimator_sets_it(settings):
    rule = ProfilerRule.sagemaker(rule_configs.ProfilerReport())
    settings.setenv("SM_PROFILER_RULE_IMAGE", "1.dkr.ecr.{region}.amazonaws.com/own:2")
    rule.image_uri = "503895931360.dkr.ecr.us-west-2.amazonaws.com/sagemaker-debugger-rules:latest"
    assert rule.image_uri == "1.dkr.ecr.us-west-2.amazonaws.com/own:2"
    rule.image_uri = "anything else"
    assert rule.image_uri == "anything else"


@pytest.mark.parametrize("text", ["{", "[]", '{"rule_image": 5}'])
def test_reports_an_invalid_settings_file(settings, text):
    settings_path().write_text(text)
    with pytest.raises(ConfigError, match=str(settings_path())):
        image()


QUIET = """
import json, logging, warnings
warnings.simplefilter("ignore")
messages = []
class Keep(logging.Handler):
    def emit(self, record):
        messages.append(record.getMessage())
logging.getLogger("sagemaker.deprecations").addHandler(Keep())
import sagemaker.debugger as theirs
from sagemaker.deprecations import deprecation_warn_base
from sagemaker.fw_utils import profiler_config_deprecation_warning
import sm_profiler.debugger as ours
from sm_profiler.debugger import sdk_compat

def count(make):
    sdk_compat._FILTER.everywhere = False
    logging.getLogger("sagemaker.deprecations").removeFilter(sdk_compat._FILTER)
    del messages[:]
    profiler_config_deprecation_warning(make(), None, "pytorch", "2.3")
    return len(messages)

def idle():
    ours.FrameworkProfile()  # which goes nowhere
    return theirs.ProfilerConfig(framework_profile_params=theirs.FrameworkProfile())

def another():
    deprecation_warn_base("Another thing")
    return ours.ProfilerConfig(framework_profile_params=ours.FrameworkProfile())

print("ANSWERS " + json.dumps({
    "theirs": count(lambda: theirs.ProfilerConfig(framework_profile_params=theirs.FrameworkProfile())),
    "ours": count(lambda: ours.ProfilerConfig(framework_profile_params=ours.FrameworkProfile())),
    "theirs in ours": count(lambda: ours.ProfilerConfig(framework_profile_params=theirs.FrameworkProfile())),
    "ours in theirs, as in update_profiler": count(lambda: theirs.ProfilerConfig(framework_profile_params=ours.FrameworkProfile())),
    "theirs beside our unused one": count(idle),
    "another message": count(another),
}))
"""


@pytest.mark.sdk2
def test_drops_the_two_deprecation_messages_and_no_others():
    shown = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout.rpartition("ANSWERS ")[2]) == {
        "theirs": 2,
        "ours": 0,
        "theirs in ours": 0,
        "ours in theirs, as in update_profiler": 0,
        "theirs beside our unused one": 2,
        "another message": 1,
    }


def test_the_filter_is_installed_once():
    for _ in range(3):
        ProfilerConfig(framework_profile_params=FrameworkProfile())
    ours = [
        f for f in logging.getLogger("sagemaker.deprecations").filters if type(f).__module__.startswith("sm_profiler")
    ]
    assert len(ours) == 1


def test_checks_hold_without_assert_statements():
    program = "from sm_profiler.debugger import FrameworkProfile\ntry: FrameworkProfile(start_step=-1)\nexcept AssertionError as e: print(e)"
    shown = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "start_step must be integer greater or equal to 0!"


ALIASED = """
import sys, warnings
warnings.simplefilter("ignore")
import importlib
import sm_profiler.debugger as ours
before = sys.argv[1] == "before"
if not before:
    import sagemaker.estimator
for name in ("", ".metrics_config", ".framework_profile", ".profiler_config", ".profiler_constants", ".profiler", ".utils", ".debugger"):
    sys.modules["sagemaker.debugger" + name] = importlib.import_module("sm_profiler.debugger" + name)
from sagemaker.debugger import ProfilerRule, Rule, CollectionConfig, RuleBase, DEBUGGER_FLAG
from sagemaker.debugger.profiler_config import ProfilerConfig, FrameworkProfile
from sagemaker.debugger.metrics_config import StepRange, TimeRange
import sagemaker.estimator
from sagemaker.pytorch import PyTorch
assert ProfilerRule is ours.ProfilerRule and ProfilerConfig is ours.ProfilerConfig
rule = Rule.sagemaker(ours.rule_configs.vanishing_gradient())
assert isinstance(rule, sagemaker.estimator.Rule) == before or not before
assert isinstance(ProfilerRule.sagemaker(ours.rule_configs.ProfilerReport()), sagemaker.estimator.ProfilerRule)
assert isinstance(ours.DetailedProfilingConfig().range, StepRange) and isinstance(CollectionConfig("a"), CollectionConfig)
assert sagemaker.estimator.ProfilerConfig(framework_profile_params=FrameworkProfile())._to_request_dict()["ProfilingParameters"]
print("fine")
"""


@pytest.mark.sdk2
@pytest.mark.parametrize("when", ["before", "after"])
def test_works_as_a_substitute_in_sys_modules(when):
    shown = subprocess.run([sys.executable, "-c", ALIASED, when], capture_output=True, text=True, check=False)
    assert shown.stdout.strip().endswith("fine"), shown.stderr[-2000:]


def of_image(parameters):
    return ProfilerRule.custom("mine", "image:1", "ml.m5.large", 10, rule_parameters=parameters)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rule_to_invoke": "CPUBottleneck", "treshold": 1}, "unknown parameter treshold; did you mean threshold?"),
        ({"rule_to_invoke": "Dataloader", "x": 1}, "x; it has min_threshold, max_threshold, scan_interval_us"),
        (
            {"rule_to_invoke": "ProfilerReport", "CPUBotleneck_threshold": 1},
            "unknown parameter CPUBotleneck_threshold; did you mean CPUBottleneck_threshold?",
        ),
        ({"rule_to_invoke": "ProfilerReport", "cpubottleneck_patients": 1}, "did you mean CPUBottleneck_patience?"),
    ],
)
def test_a_misspelt_parameter_of_a_built_in_rule_is_refused_before_a_job_is_paid_for(parameters, message):
    """The rule job failed minutes later, next to a training that went on."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        of_image(parameters)
    by_hand = ProfilerRule("mine", "image:1", None, None, None, None, parameters)
    with pytest.raises(ConfigError, match=re.escape(message)):
        to_request(None, [by_hand], region="eu-west-1")


@pytest.mark.parametrize(
    "parameters",
    [
        {"rule_to_invoke": "CPUBottleneck", "CPUBottleneck_threshold": 1, "rule_timeout_secs": 5, "HTTP_PROXY": "x"},
        {"rule_to_invoke": "ProfilerReport", "cpubottleneck_threshold": 1, "opt_out_telemetry": True},
        {"rule_to_invoke": "ProfilerReport", "MemoryMargin_limit": 1},  # of another package
        {"rule_to_invoke": "MemoryMargin", "limit": 1},
        {"rule_to_invoke": "StepOutlier", "source_s3_uri": "s3://b/r.py", "anything": 1},
    ],
)
def test_parameters_that_an_image_may_have_are_accepted(parameters):
    assert of_image(parameters).rule_parameters == parameters
