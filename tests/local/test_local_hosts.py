"""Processing jobs of several instances: each host a process, and the rule image with Dask on all of them."""

import json

import pytest

from sm_profiler.cli.main import main
from tests.support.jobs import make_job

RULES_IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/sm-profiler-rules:1"
OUTPUT = "/opt/ml/processing/output"
CODE = "/opt/ml/processing/input/code"
SCRIPT = """
import json, os, pathlib, sys, time
root = pathlib.Path(os.environ["SM_PROFILER_ROOT"])
found = json.loads((root / "config" / "resourceconfig.json").read_text())
host = found["current_host"]
(root / "processing" / "output" / (host + ".json")).write_text(
    json.dumps([found["hosts"], os.environ["SM_PROFILER_SCHEDULER"]])
)
(root / "output").mkdir()
(root / "output" / "message").write_text("from " + host)
if host == sys.argv[1]:
    sys.exit(4)
while len(sys.argv) > 2:
    time.sleep(1)
"""


def run(bench, name, count, *arguments, **more):
    bench.s3.put_object(Bucket=bench.local.bucket, Key="hosts/code/step.py", Body=SCRIPT.encode())
    source = {
        "S3Uri": f"s3://{bench.local.bucket}/hosts/code/step.py",
        "LocalPath": CODE,
        "S3DataType": "S3Prefix",
        "S3InputMode": "File",
    }
    request = {
        "ProcessingJobName": name,
        "RoleArn": bench.local.role,
        "AppSpecification": {
            "ImageUri": "python",
            "ContainerEntrypoint": ["python3", f"{CODE}/step.py"],
            "ContainerArguments": list(arguments),
        },
        "ProcessingResources": {
            "ClusterConfig": {"InstanceCount": count, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 1}
        },
        "ProcessingInputs": [{"InputName": "code", "S3Input": source}],
        "ProcessingOutputConfig": {
            "Outputs": [
                {
                    "OutputName": "out",
                    "S3Output": {
                        "S3Uri": f"s3://{bench.local.bucket}/{name}", "LocalPath": OUTPUT, "S3UploadMode": "EndOfJob"
                    },
                }
            ]
        },
        **more,
    }  # fmt: skip
    bench.sagemaker.create_processing_job(**request)
    return bench.until(
        lambda: bench.sagemaker.describe_processing_job(ProcessingJobName=name),
        lambda job: job["ProcessingJobStatus"] in ("Completed", "Failed", "Stopped"),
        300,
    )


def test_each_host_is_a_process_with_a_name(bench):
    job = run(bench, "three", 3, "none")
    assert job["ProcessingJobStatus"] == "Completed", job
    assert job["ExitMessage"] == "from algo-1 from algo-2 from algo-3"
    hosts = ["algo-1", "algo-2", "algo-3"]
    found = [
        json.load(bench.s3.get_object(Bucket=bench.local.bucket, Key=f"three/{host}.json")["Body"]) for host in hosts
    ]
    assert [names for names, _ in found] == [hosts] * 3
    assert len({scheduler for _, scheduler in found}) == 1


def test_host_that_fails_fails_the_job(bench):
    job = run(bench, "one-fails", 2, "algo-2", "and the other goes on")
    assert job["ProcessingJobStatus"] == "Failed"
    assert "algo-2: exit code 4" in job["FailureReason"]


def test_too_many_hosts_are_refused(bench):
    assert "runs at most 8" in run(bench, "many", 9, "none")["FailureReason"]


@pytest.fixture
def long_job(bench, tmp_path):
    """A training job with a profile of two hours."""
    name = bench.start("print('done')")
    bench.wait(name)
    make_job(tmp_path / "job", "--minutes 135 --interval-ms 8000 --steps-per-second 0.6 --gpus 2 --cpus 2")
    for file in (tmp_path / "job").rglob("*"):
        if file.is_file():
            key = f"out/{name}/profiler-output/{file.relative_to(tmp_path / 'job')}"
            bench.s3.upload_file(str(file), bench.local.bucket, key)
    return name


@pytest.mark.long
def test_report_of_several_instances_equals_that_of_one(bench, long_job, monkeypatch, capsys):
    for name, value in bench.local.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sm_profiler.deploy.POLL_S", 1.0)
    words = ["report", long_job, "--on-sagemaker", "--image", RULES_IMAGE, "--role", bench.local.role]
    reports = []
    for count in ("1", "2", "3"):
        assert main([*words, "--instances", count]) == 0
        shown = capsys.readouterr()
        assert "Only the first host" not in shown.out
        assert "did not join" not in shown.out
        page = shown.out.splitlines()[-1]
        bucket, _, key = page.removeprefix("s3://").rpartition("/")[0].partition("/")
        found = json.load(bench.s3.get_object(Bucket=bucket, Key=f"{key}/report.json")["Body"])
        del found["generated"]
        reports.append(found)
    assert reports[0] == reports[1] == reports[2]
    (started,) = [line for line in shown.err.splitlines() if "started processing job" in line]
    job = bench.sagemaker.describe_processing_job(ProcessingJobName=started.split()[-1])
    assert job["ProcessingResources"]["ClusterConfig"]["InstanceCount"] == 3
    assert job["ProcessingResources"]["ClusterConfig"]["InstanceType"] == "ml.m5.xlarge"
