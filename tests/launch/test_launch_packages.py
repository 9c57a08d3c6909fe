"""The agent backend with sm-profiler installed by the job: from requirements.txt, or from a wheel beside the script."""

import io
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from sm_profiler.debugger import FrameworkProfile, ProfilerConfig
from sm_profiler.launch import attach
from sm_profiler.local import LocalSageMaker

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / "examples/launch_source/train.py").read_text()
PRINTS_PATH = "import sm_profiler\nprint('sm_profiler from', sm_profiler.__file__)\n"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Wheel of this package."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (path,) = folder.glob("sm_profiler-*.whl")
    return path


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    with LocalSageMaker(folder=tmp_path_factory.mktemp("endpoint")) as running:
        yield running


@pytest.mark.long
@pytest.mark.parametrize("way", ["wheel beside the script", "named in requirements.txt"])
def test_a_job_installs_the_package(local, wheel, way):
    beside = way.startswith("wheel")
    requirements = (
        f"--no-index\n./{wheel.name}\n" if beside else f"--no-index\n--find-links {wheel.parent}\nsm-profiler\n"
    )
    files = {"train.py": (PRINTS_PATH + SCRIPT.split('"""', 2)[2]).encode(), "requirements.txt": requirements.encode()}
    if beside:
        files[wheel.name] = wheel.read_bytes()
    name = "wheel" if beside else "named"
    job = run(local, name, files)
    assert job["TrainingJobStatus"] == "Completed", job["FailureReason"]
    keys = {
        one["Key"]
        for one in local.client("s3").list_objects_v2(Bucket=local.bucket, Prefix=f"out/{name}/profiler-output/")[
            "Contents"
        ]
    }
    assert any("/framework/pevents/" in key for key in keys), keys
    assert any("/system/" in key for key in keys), keys
    if beside:
        (line,) = [line for line in lines(local, name) if line.startswith("sm_profiler from")]
        assert str(local.folder) in line, "the job's wheel, not this repository"


def run(local, name, files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    local.client("s3").put_object(Bucket=local.bucket, Key=f"{name}.tar.gz", Body=buffer.getvalue())
    client = local.client("sagemaker")
    attach(client, ProfilerConfig(framework_profile_params=FrameworkProfile(start_step=5)), backend="agent")
    client.create_training_job(
        TrainingJobName=name,
        RoleArn=local.role,
        AlgorithmSpecification={"TrainingImage": "image", "TrainingInputMode": "File"},
        HyperParameters={
            "sagemaker_program": json.dumps("train.py"),
            "sagemaker_submit_directory": json.dumps(f"s3://{local.bucket}/{name}.tar.gz"),
        },
        OutputDataConfig={"S3OutputPath": f"s3://{local.bucket}/out"},
        ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        StoppingCondition={"MaxRuntimeInSeconds": 200},
    )
    end = time.monotonic() + 200
    while (job := client.describe_training_job(TrainingJobName=name))["TrainingJobStatus"] == "InProgress":
        assert time.monotonic() < end, job
        time.sleep(0.3)
    return job


def lines(local, name):
    logs = local.client("logs")
    group = "/aws/sagemaker/TrainingJobs"
    streams = logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=f"{name}/")["logStreams"]
    return [
        event["message"]
        for stream in streams
        for event in logs.get_log_events(logGroupName=group, logStreamName=stream["logStreamName"], startFromHead=True)[
            "events"
        ]
    ]
