"""Comparison with the SDK: the same request, byte for byte, or the same error with the same text."""

import enum
import inspect
import json
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sm_profiler.debugger as ours

pytestmark = pytest.mark.sdk2

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the SDK's end-of-life notice for version 2
    import sagemaker.debugger as theirs
    from sagemaker.debugger import metrics_config as their_metrics

MANY = settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
SOME = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


class Timer(enum.Enum):
    TOTAL_TIME = "total_time"


def outcome(call):
    """Return a call's request as text, or its error's type and text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return json.dumps(call(), default=repr)
    except Exception as error:
        return type(error), str(error)


# valid and invalid values: numbers of every kind, text, None, booleans, wrong objects
numbers = (
    st.integers(-3, 20) | st.integers() | st.floats() | st.booleans() | st.sampled_from([2**31, 10**11, 10**18, 1e300])
)
wrong = st.sampled_from(["5", b"x", [], {}, (1,), object])
mostly_none = st.none() | st.none() | numbers | wrong
steps = st.none() | st.integers(0, 100)
seconds = st.none() | st.integers(1, 2_000_000_000) | st.floats(0.1, 1e6)
regexes = st.sampled_from([".*", "", "(", "*", "a{99999999999}", 'quote"', r"\d+\\", None, 3, b"bytes"]) | st.text(
    max_size=12
)
# each side gets a member of its own enum, or the same invalid value
profilers = st.sampled_from([("PythonProfiler", "CPROFILE"), ("PythonProfiler", "PYINSTRUMENT"), "cprofile", None, 3])
timers = st.sampled_from(
    [("cProfileTimer", name) for name in ("TOTAL_TIME", "CPU_TIME", "OFF_CPU_TIME", "DEFAULT")]
    + ["total_time", None, Timer.TOTAL_TIME]
)

ranges = st.fixed_dictionaries(
    {},
    optional={
        "start_step": mostly_none,
        "num_steps": mostly_none,
        "start_unix_time": mostly_none,
        "duration": mostly_none,
    },
)
valid_ranges = st.one_of(
    st.just({}),
    st.fixed_dictionaries({}, optional={"start_step": steps, "num_steps": st.none() | st.integers(1, 50)}),
    st.fixed_dictionaries({}, optional={"start_unix_time": st.none() | st.integers(0, 2**31), "duration": seconds}),
)
defaults = st.fixed_dictionaries(
    {}, optional={"profile_default_steps": st.booleans() | st.sampled_from([None, 0, 1, "yes"])}
)
unknown = st.sampled_from([{}] * 12 + [{"colour": 1}])

extras = {
    "DetailedProfilingConfig": st.just({}),
    "DataloaderProfilingConfig": st.fixed_dictionaries({}, optional={"metrics_regex": regexes}),
    "PythonProfilingConfig": st.fixed_dictionaries(
        {}, optional={"python_profiler": profilers, "cprofile_timer": timers}
    ),
    "HorovodProfilingConfig": st.just({}),
    "SMDataParallelProfilingConfig": st.just({}),
}
metrics = st.one_of(
    *(
        st.tuples(st.just(name), st.tuples(ranges | valid_ranges, defaults, extra, unknown))
        for name, extra in extras.items()
    )
)
positional = st.lists(mostly_none, max_size=7)


def arguments(side, parts):
    merged = {}
    for part in parts:
        merged.update(part)
    return {
        name: getattr(getattr(side, value[0]), value[1]) if isinstance(value, tuple) and len(value) == 2 else value
        for name, value in merged.items()
    }


def metrics_config(side, spec):
    name, parts = spec
    return getattr(side, name)(**arguments(side, parts))


@MANY
@given(metrics)
def test_metrics_configs_are_equal(spec):
    def described(side):
        made = metrics_config(side, spec)
        return [made.name, made.to_json_string(), type(made.range).__name__, vars(made.range), made._to_json()]

    assert outcome(lambda: described(ours)) == outcome(lambda: described(theirs))


@SOME
@given(st.sampled_from(list(extras)), positional)
def test_positional_arguments_are_equal(name, values):
    assert outcome(lambda: getattr(ours, name)(*values).to_json_string()) == outcome(
        lambda: getattr(theirs, name)(*values).to_json_string()
    )


fields = st.fixed_dictionaries(
    {},
    optional={
        "local_path": st.text(max_size=8) | wrong | st.none(),
        "file_max_size": numbers | wrong,
        "file_close_interval": numbers | wrong,
        "file_open_fail_threshold": numbers | wrong,
    },
)
NAMES = ("detailed", "dataloader", "python", "horovod", "smdataparallel")
configs = st.dictionaries(
    st.sampled_from([f"{name}_profiling_config" for name in NAMES]),
    metrics | st.sampled_from([None, 5, "x"]),
    max_size=5,
)


def framework_profile(side, spec):
    own, parts, given_configs, more = spec
    made = {
        name: metrics_config(side, config) if isinstance(config, tuple) else config
        for name, config in given_configs.items()
    }
    return side.FrameworkProfile(**own, **arguments(side, [parts, more]), **made)


profiles = st.tuples(st.just({}) | fields, ranges | valid_ranges, st.just({}) | configs, unknown)


@MANY
@given(profiles)
def test_framework_profiles_are_equal(spec):
    assert outcome(lambda: framework_profile(ours, spec).profiling_parameters) == outcome(
        lambda: framework_profile(theirs, spec).profiling_parameters
    )


@SOME
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "s3_output_path": st.none() | st.text(max_size=9) | numbers,
            "system_monitor_interval_millis": st.none() | numbers | st.sampled_from([100, 500]),
            "disable_profiler": st.booleans() | st.sampled_from([None, "True", 0, 1]),
        },
    ),
    st.none()
    | st.tuples(st.just({}), valid_ranges, st.just({}), st.just({}))
    | st.sampled_from(["FrameworkProfile", {}, 0, []]),
    st.none() | st.none() | st.tuples(numbers, numbers) | st.sampled_from(["Profiler", {}, 0]),
)
def test_profiler_configs_are_equal(plain, framework, profiler):
    def request(side):
        made = dict(plain)
        made["framework_profile_params"] = (
            framework_profile(side, framework) if isinstance(framework, tuple) else framework
        )
        made["profile_params"] = side.Profiler(*profiler) if isinstance(profiler, tuple) else profiler
        config = side.ProfilerConfig(**made)
        return [config._to_request_dict(), config._to_profiler_disabled_request_dict()]

    assert outcome(lambda: request(ours)) == outcome(lambda: request(theirs))


texts = st.none() | st.text(max_size=8)
parameters = st.none() | st.dictionaries(st.text(max_size=5), texts | numbers, max_size=3)


@SOME
@given(
    st.fixed_dictionaries(
        {"name": texts, "image_uri": texts, "instance_type": texts, "volume_size_in_gb": st.none() | st.integers(0, 5)},
        optional={
            "source": texts,
            "rule_to_invoke": texts,
            "container_local_output_path": texts,
            "s3_output_path": texts,
            "rule_parameters": parameters,
        },
    ),
    unknown,
)
def test_custom_rules_are_equal(kwargs, more):
    def request(side):
        return side.ProfilerRule.custom(**json.loads(json.dumps(kwargs)), **more).to_profiler_rule_config_dict()

    assert outcome(lambda: request(ours)) == outcome(lambda: request(theirs))


@SOME
@given(
    st.sampled_from(["ProfilerReport", "CPUBottleneck", "StepOutlier"]),
    st.fixed_dictionaries(
        {},
        optional={
            "name": texts,
            "instance_type": texts,
            "volume_size_in_gb": st.none() | st.integers(0, 5),
            "container_local_output_path": texts,
            "s3_output_path": texts,
        },
    ),
)
def test_built_in_rules_are_equal(rule, kwargs):
    def request(side):
        made = side.ProfilerRule.sagemaker(getattr(side.rule_configs, rule)(), **kwargs)
        return [made.name, made.image_uri, made.to_profiler_rule_config_dict()]

    assert outcome(lambda: request(ours)) == outcome(lambda: request(theirs))


@pytest.mark.parametrize(
    "call",
    [
        lambda side: side.ProfilerRule(),
        lambda side: side.ProfilerRule(1, 2),
        lambda side: side.ProfilerRule(name=1, other=2),
        lambda side: side.ProfilerRule.sagemaker(),
        lambda side: side.ProfilerRule.sagemaker(None),
        lambda side: side.ProfilerRule.custom("n"),
        lambda side: side.Profiler(1, 2, 3),
        lambda side: side.FrameworkProfile(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14),
        lambda side: side.ProfilerConfig(profiler_params=1),
        lambda side: side.PythonProfiler("perf"),
        lambda side: repr(side.ProfilerRule(1, 2, 3, 4, 5, 6, 7)),
        lambda side: side.ProfilerRule(1, 2, 3, 4, 5, 6, 7) < side.ProfilerRule(1, 2, 3, 4, 5, 6, 8),
        lambda side: hash(side.ProfilerRule(1, 2, 3, 4, 5, 6, 7)),
        lambda side: [member.value for member in side.cProfileTimer],
        lambda side: [side.get_default_profiler_processing_job().to_profiler_rule_config_dict()["RuleParameters"]],
        lambda side: len(side.get_default_profiler_processing_job().name),
    ],
)
def test_other_calls_are_equal(call):
    assert outcome(lambda: call(ours)) == outcome(lambda: call(theirs))


@SOME
@given(
    st.integers(0) | st.none(),
    st.integers() | st.none(),
    st.integers() | st.none(),
    st.floats(allow_nan=False) | st.none(),
)
def test_ranges_are_equal(start, number, when, duration):
    assert ours.StepRange(start, number).to_json() == their_metrics.StepRange(start, number).to_json()
    assert ours.TimeRange(when, duration).to_json() == their_metrics.TimeRange(when, duration).to_json()


@pytest.mark.parametrize("module", ["profiler_constants", "utils"])
def test_constants_and_messages_are_equal(module):
    our_module, their_module = (
        __import__(f"{package}.{module}", fromlist=["_"]) for package in ("sm_profiler.debugger", "sagemaker.debugger")
    )
    for name, value in vars(their_module).items():
        if name.isupper():
            assert getattr(our_module, name) == value
            assert type(getattr(our_module, name)) is type(value)
    if module == "utils":
        assert {m.name: m.value for m in our_module.ErrorMessages} == {
            m.name: m.value for m in their_module.ErrorMessages
        }
        config = {"a": "x", "b": 1, 3: None, "c": math.inf}
        assert our_module.convert_json_config_to_string(config) == their_module.convert_json_config_to_string(config)


@pytest.mark.parametrize("name", [n for n in vars(theirs) if n[0] != "_" and n != "absolute_import"])
def test_has_every_name_of_the_sdk(name):
    assert getattr(ours, name) is not None


@pytest.mark.parametrize(
    "module",
    ["metrics_config", "framework_profile", "profiler_config", "profiler_constants", "profiler", "utils", "debugger"],
)
def test_modules_have_the_sdks_names(module):
    our_module, their_module = (
        __import__(f"{package}.{module}", fromlist=["_"]) for package in ("sm_profiler.debugger", "sagemaker.debugger")
    )
    defined = {
        name
        for name, value in vars(their_module).items()
        if getattr(value, "__module__", None) == their_module.__name__ and name[0] != "_"
    }
    missing = {name for name in defined if not hasattr(our_module, name)}
    assert not missing


def test_a_star_import_has_the_names_of_the_sdks():
    star = {}
    exec("from sm_profiler.debugger import *", star)  # noqa: S102 - what a user's script begins with
    public = {name for name in vars(theirs) if not name.startswith("_") and not inspect.ismodule(getattr(theirs, name))}
    assert public - {"absolute_import"} <= star.keys()
    assert star["Rule"] is theirs.Rule
    assert star["ProfilerRule"] is ours.ProfilerRule


def test_a_star_import_needs_no_sdk(tmp_path):
    (tmp_path / "sagemaker.py").write_text("raise ModuleNotFoundError(name='sagemaker')")
    code = "from sm_profiler.debugger import *; print(ProfilerConfig.__name__, 'Rule' in globals())"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True) == "ProfilerConfig False\n"
