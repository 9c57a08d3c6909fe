"""Public names under a type checker: correct calls pass, wrong ones are reported."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLE = """
from typing import Any, assert_type
from sm_profiler import ProfilerConfig as FromTop
from sm_profiler.config import CollectorConfig, Explanation, Profile, load_profile
from sm_profiler.debugger import (
    DataloaderProfilingConfig, DetailedProfilingConfig, FrameworkProfile, Profiler, ProfilerConfig, ProfilerRule,
    PythonProfiler, PythonProfilingConfig, StepRange, TimeRange, cProfileTimer, get_default_profiler_processing_job,
    get_rule_container_image_uri, rule_configs,
)
from sm_profiler.debugger.metrics_config import MetricsConfigBase
from sm_profiler.launch import Attachment, agent_environment, attach, check_request, to_request, to_shapes

framework = FrameworkProfile(
    detailed_profiling_config=DetailedProfilingConfig(start_step=5, num_steps=2),
    dataloader_profiling_config=DataloaderProfilingConfig(duration=2.5, metrics_regex=".*"),
    python_profiling_config=PythonProfilingConfig(python_profiler=PythonProfiler.CPROFILE, cprofile_timer=cProfileTimer.CPU_TIME),
)
config = ProfilerConfig(s3_output_path="s3://b", framework_profile_params=framework)
assert_type(framework.profiling_parameters, dict[str, str])
assert_type(framework.metrics_configs, dict[str, MetricsConfigBase])
assert_type(config.explain(), Explanation)
assert_type(ProfilerConfig.from_request({}), ProfilerConfig)
assert_type(config.framework_profile_params, FrameworkProfile | None)
assert_type(DetailedProfilingConfig().range, StepRange | TimeRange)
assert_type(ProfilerRule.sagemaker(rule_configs.ProfilerReport()), ProfilerRule)
assert_type(get_default_profiler_processing_job(), ProfilerRule)
assert_type(get_rule_container_image_uri("n", "us-east-1"), str)
assert_type(load_profile("{}"), Profile)
assert_type(load_profile("{}").collectors, dict[str, CollectorConfig])
assert_type(to_request(config), dict[str, Any])
assert_type(to_shapes(config), dict[str, Any])
assert_type(attach(object(), config, backend="agent"), Attachment)
assert_type(agent_environment(config), dict[str, Any])
assert_type(check_request("CreateTrainingJob", {}), list[str])
DetailedProfilingConfig(start_step="5")  # wrong
PythonProfilingConfig(python_profiler="cprofile")  # wrong
FrameworkProfile(local_path=5)  # wrong
ProfilerConfig(framework_profile_params=Profiler())  # wrong
ProfilerConfig(profiler_params=Profiler())  # wrong
FrameworkProfile(detailed_profiling_config=5)  # wrong
FrameworkProfile(start_stepp=5)  # wrong
"""


@pytest.mark.long
def test_mypy_accepts_correct_calls_and_reports_wrong_ones(tmp_path):
    sample = tmp_path / "sample.py"
    sample.write_text(SAMPLE)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--config-file",
        str(ROOT / "pyproject.toml"),
        str(sample),
    ]
    shown = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache")], capture_output=True, text=True, check=False, cwd=ROOT
    )
    found = {int(line.split(":")[1]) for line in shown.stdout.splitlines() if ": error:" in line}
    wrong = {number for number, line in enumerate(SAMPLE.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, shown.stdout + shown.stderr
