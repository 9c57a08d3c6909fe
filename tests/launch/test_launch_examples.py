"""Each example script starts a job on the local endpoint; the request and the profile are checked."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm_profiler.config import config_from_environment, load_profile
from sm_profiler.launch import check_request
from sm_profiler.local import LocalSageMaker

ROOT = Path(__file__).parents[2]
WINDOW = '{"StartStep": 5, "NumSteps": 2, }'

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Bench:
    """An endpoint and the jobs started on it."""

    def __init__(self, local):
        self.local = local
        self.sagemaker, self.s3 = local.client("sagemaker"), local.client("s3")

    def launch(self, script, python=sys.executable):
        """Run an example, wait until its job has ended, and return the job's description."""
        before = set(self.names())
        environment = {
            **os.environ,
            **self.local.environment,
            "SAGEMAKER_ROLE": self.local.role,
            "BUCKET": self.local.bucket,
            "PYTHONPATH": str(ROOT),
            "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
        }
        environment.pop("SM_PROFILER_RULE_IMAGE", None)
        shown = subprocess.run(
            [str(python), str(ROOT / "examples" / script)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert shown.returncode == 0, shown.stderr[-3000:]
        assert "no framework metrics will be collected" not in shown.stderr.lower()
        (name,) = set(self.names()) - before
        end = time.monotonic() + 200
        while (job := self.describe(name))["TrainingJobStatus"] == "InProgress":
            assert time.monotonic() < end, job
            time.sleep(0.2)
        assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
        return job

    def names(self):
        return [one["TrainingJobName"] for one in self.sagemaker.list_training_jobs()["TrainingJobSummaries"]]

    def describe(self, name):
        return self.sagemaker.describe_training_job(TrainingJobName=name)

    def keys(self, prefix):
        return [
            one["Key"] for one in self.s3.list_objects_v2(Bucket=self.local.bucket, Prefix=prefix).get("Contents", ())
        ]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with LocalSageMaker(folder=tmp_path_factory.mktemp("endpoint")) as local:
        yield Bench(local)


def assert_profiled(bench, job):
    """Check the request and the profile."""
    base = f"s3://{bench.local.bucket}/"
    config = job["ProfilerConfig"]
    assert config["S3OutputPath"].startswith(base)
    assert config["ProfilingIntervalInMilliseconds"] == 500
    assert config.get("DisableProfiler", False) is False
    assert list(config["ProfilingParameters"].values())[4] == WINDOW
    assert config["ProfilingParameters"]["DetailedProfilingConfig"] == WINDOW
    (rule,) = job["ProfilerRuleConfigurations"]
    assert rule["RuleConfigurationName"] == "ProfilerReport"
    assert rule["RuleEvaluatorImage"].startswith("503895931360.dkr.ecr.us-east-1")
    assert rule["RuleParameters"] == {"rule_to_invoke": "ProfilerReport"}
    assert job["Environment"]["SM_PROFILER_AUTO"] == "1"
    sent = {key: job[key] for key in ("ProfilerConfig", "ProfilerRuleConfigurations", "Environment")}
    assert check_request("CreateTrainingJob", sent, only=list(sent)) == []
    prefix = (
        f"{config['S3OutputPath']}/{job['TrainingJobName']}/profiler-output/".removeprefix(base)
        .replace("//", "/")
        .lstrip("/")
    )
    assert_files(bench.keys(prefix))


def assert_files(keys):
    assert any("/system/" in key for key in keys), keys
    assert any("/framework/pevents/" in key for key in keys), keys


@pytest.mark.long
@pytest.mark.sdk2
def test_estimator_v2(bench):
    assert_profiled(bench, bench.launch("launch_estimator_v2.py"))


@pytest.mark.long
@pytest.mark.sdk2
def test_boto3(bench):
    assert_profiled(bench, bench.launch("launch_boto3.py"))


@pytest.mark.long
@pytest.mark.sdk3
def test_model_trainer_v3(bench, sdk3_python):
    assert_profiled(bench, bench.launch("launch_model_trainer_v3.py", sdk3_python))


@pytest.mark.long
@pytest.mark.sdk3
def test_training_job_v3(bench, sdk3_python):
    assert_profiled(bench, bench.launch("launch_training_job_v3.py", sdk3_python))


@pytest.mark.long
@pytest.mark.sdk2
def test_agent(bench):
    job = bench.launch("launch_agent.py")
    assert job["ProfilerConfig"] == {"DisableProfiler": True}
    assert not job.get("ProfilerRuleConfigurations")
    environment = job["Environment"]
    assert environment["SM_PROFILER_AUTO"] == "1"
    assert all(len(value) <= 512 for value in environment.values())
    profile = load_profile(config_from_environment(environment))
    assert (profile.interval_ms, profile.collectors["detailed"].start_step) == (500, 5)
    prefix = profile.s3_output_path.partition(f"{bench.local.bucket}/")[2].rstrip("/")
    prefix = f"{prefix}/{job['TrainingJobName']}/profiler-output/".lstrip("/")
    assert_files(bench.keys(prefix))
