"""Requests that the endpoint refuses before a job exists, and UpdateTrainingJob."""

import http.client
import json
from datetime import timedelta
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

RULE = {"RuleConfigurationName": "ProfilerReport", "RuleEvaluatorImage": "image", "RuleParameters": {}}


def refused(bench, **changes):
    request = bench.request("print(1)", **changes)
    with pytest.raises(ClientError, match=r"\(ValidationException\) when calling the CreateTrainingJob") as caught:
        bench.sagemaker.create_training_job(**request)
    names = [job["TrainingJobName"] for job in bench.sagemaker.list_training_jobs()["TrainingJobSummaries"]]
    assert request["TrainingJobName"] not in names
    return str(caught.value)


def test_lengths_and_patterns_and_maxima_are_checked(bench):
    # botocore sends all of these
    assert "Environment" in refused(bench, Environment={"A": "x" * 513})
    assert "TrainingJobName" in refused(bench, TrainingJobName="under_score")
    assert "RoleArn" in refused(bench, RoleArn="me-but-long-enough-for-botocore")
    rules = [{**RULE, "RuleConfigurationName": f"rule-{number}"} for number in range(21)]
    assert "ProfilerRuleConfigurations" in refused(
        bench, ProfilerConfig={"S3OutputPath": "s3://a/b"}, ProfilerRuleConfigurations=rules
    )
    assert "2 validation errors" in refused(
        bench, RoleArn="me-but-long-enough-for-botocore", Environment={"A": "x" * 513}
    )


def test_constraints_beyond_the_service_model(bench):
    config = {"S3OutputPath": "s3://a/b"}
    assert "DisableProfiler" in refused(
        bench, ProfilerConfig={**config, "DisableProfiler": True}, ProfilerRuleConfigurations=[RULE]
    )
    assert "300" in refused(bench, ProfilerConfig={**config, "ProfilingIntervalInMilliseconds": 300})
    assert "two rules are named" in refused(bench, ProfilerConfig=config, ProfilerRuleConfigurations=[RULE, RULE])


def test_update_rewrites_the_running_jobs_file(bench):
    script = """
import os, time
from pathlib import Path
path = Path(os.environ["SM_INPUT_CONFIG_DIR"], "profilerconfig.json")
before = path.read_text()
print("ready", flush=True)
while path.read_text() == before:
    time.sleep(0.05)
Path(os.environ["SM_OUTPUT_DATA_DIR"], "after.json").write_text(path.read_text())
"""
    parameters = {"LocalPath": "/opt/ml/output/profiler"}
    config = {
        "S3OutputPath": f"s3://{bench.local.bucket}/u",
        "ProfilingIntervalInMilliseconds": 500,
        "ProfilingParameters": parameters,
    }
    name = bench.start(script, ProfilerConfig=config)
    bench.wait_for_line(name, "ready")
    more = {"StepRange": "1"}
    bench.sagemaker.update_training_job(
        TrainingJobName=name, ProfilerConfig={"ProfilingIntervalInMilliseconds": 1000, "ProfilingParameters": more}
    )
    job = bench.wait(name)
    expected = {**config, "ProfilingIntervalInMilliseconds": 1000, "ProfilingParameters": more}
    assert job["ProfilerConfig"] == expected
    output = bench.archive(job["ModelArtifacts"]["S3ModelArtifacts"].replace("model.", "output."))
    assert json.loads(output["after.json"]) == expected
    with pytest.raises(ClientError, match="cannot be updated: its status is Completed"):
        bench.sagemaker.update_training_job(TrainingJobName=name, ProfilerConfig={"DisableProfiler": True})


def test_an_update_does_not_move_the_profile(bench):
    """The files stayed where they were, and the end markers went to the new path, where nothing else was."""
    script = """
import os, time
from pathlib import Path
path = Path(os.environ["SM_INPUT_CONFIG_DIR"], "profilerconfig.json")
while "1000" not in path.read_text():
    time.sleep(0.05)
"""
    base = f"s3://{bench.local.bucket}"
    config = {
        "S3OutputPath": f"{base}/stays",
        "ProfilingIntervalInMilliseconds": 100,
        "ProfilingParameters": {"LocalPath": "/opt/ml/mine"},
    }
    name = bench.start(script, ProfilerConfig=config)
    with pytest.raises(ClientError, match=f"S3OutputPath cannot be changed.*{base}/stays/{name}"):
        bench.sagemaker.update_training_job(TrainingJobName=name, ProfilerConfig={"S3OutputPath": f"{base}/moves"})
    for change in ({"DisableProfiler": True}, {"DisableProfiler": False, "S3OutputPath": f"{base}/stays/"}):
        bench.sagemaker.update_training_job(TrainingJobName=name, ProfilerConfig=change)
    for change in ({"ProfilingParameters": {}}, {"ProfilingIntervalInMilliseconds": 1000}):
        bench.sagemaker.update_training_job(TrainingJobName=name, ProfilerConfig=change)
    assert bench.wait(name)["TrainingJobStatus"] == "Completed"
    places = {key.partition(f"/{name}/")[0] for key in bench.keys("") if f"/{name}/profiler-output/" in key}
    assert places == {"stays"}


def test_a_job_whose_profiler_was_never_on_has_no_profile(bench):
    """The end markers of a profile lay next to its model."""
    job = bench.run("", ProfilerConfig={"DisableProfiler": True})
    assert not [key for key in bench.keys("out/") if f"{job['TrainingJobName']}/profiler-output" in key]


def test_update_directly_after_create(bench):
    """Before or while the job's folders are created, the script finds the new file."""
    script = """
import os, sys
from pathlib import Path
found = Path(os.environ["SM_INPUT_CONFIG_DIR"], "profilerconfig.json").read_text()
sys.exit("1000" not in found)
"""
    config = {"S3OutputPath": f"s3://{bench.local.bucket}/u", "ProfilingIntervalInMilliseconds": 500}
    for _ in range(3):
        name = bench.start(script, ProfilerConfig=config)
        bench.sagemaker.update_training_job(
            TrainingJobName=name,
            ProfilerConfig={"ProfilingIntervalInMilliseconds": 1000},
            ProfilerRuleConfigurations=[RULE],
        )
        job = bench.wait(name)
        assert job["TrainingJobStatus"] == "Completed", job["FailureReason"]
        assert len(job["ProfilerRuleEvaluationStatuses"]) == 1


def test_profiling_status_when_disabled_or_absent(bench):
    config = {"S3OutputPath": f"s3://{bench.local.bucket}/u"}
    name = bench.start("import time\ntime.sleep(30)", ProfilerConfig=config)
    bench.until(lambda: bench.describe(name), lambda job: job["SecondaryStatus"] == "Training")
    bench.sagemaker.update_training_job(TrainingJobName=name, ProfilerConfig={"DisableProfiler": True})
    assert bench.describe(name)["ProfilingStatus"] == "Disabled"
    bench.sagemaker.stop_training_job(TrainingJobName=name)
    bench.wait(name)
    job = bench.run("import os\nassert 'SM_PROFILER_AUTO' not in os.environ")
    assert (job["TrainingJobStatus"], job["ProfilingStatus"]) == ("Completed", "Disabled")
    assert "ProfilerConfig" not in job


def test_principal_policy_role_and_identity(bench, local):
    iam, sts = local.client("iam"), local.client("sts")
    found = iam.simulate_principal_policy(PolicySourceArn=local.role, ActionNames=["s3:GetObject", "s3:PutObject"])
    assert [entry["EvalDecision"] for entry in found["EvaluationResults"]] == ["allowed", "allowed"]
    assert iam.get_role(RoleName=local.role.rpartition("/")[2])["Role"]["Arn"] == local.role
    assert sts.get_caller_identity()["Account"] in local.bucket


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Host": "127.0.0.1", "Origin": "http://evil.example"}])
def test_requests_from_web_pages_are_refused(local, headers):
    port = int(local.url.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", "/", body="{}", headers={"X-Amz-Target": "SageMaker.CreateTrainingJob", **headers})
        assert connection.getresponse().status == 403
    finally:
        connection.close()


def test_listens_on_this_machine_only(local):
    port = int(local.url.rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    bound = {row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")}
    assert bound == {f"0100007F:{port:04X}"}


def test_jobs_that_would_not_run_are_refused(bench):
    with pytest.raises(
        ClientError, match=r"The local endpoint runs no tuning jobs: run one trial as a training job, with fixed \w+$"
    ):
        bench.sagemaker.create_hyper_parameter_tuning_job(
            HyperParameterTuningJobName="tune",
            HyperParameterTuningJobConfig={"Strategy": "Random", "ResourceLimits": {"MaxParallelTrainingJobs": 1}},
        )
    with pytest.raises(ClientError, match="runs no compilation jobs"):
        bench.sagemaker.create_compilation_job(
            CompilationJobName="compile",
            RoleArn=bench.local.role,
            OutputConfig={"S3OutputLocation": "s3://bucket/x", "TargetDevice": "ml_m5"},
            StoppingCondition={"MaxRuntimeInSeconds": 900},
        )


def test_jobs_are_listed_by_time_and_in_the_requested_order(bench):
    """A time was refused ("can't compare offset-naive and offset-aware datetimes"), and the order was ignored."""
    started = [bench.start("print(1)") for _ in range(3)]
    for name in started:
        bench.wait(name)
    created = {name: bench.sagemaker.describe_training_job(TrainingJobName=name)["CreationTime"] for name in started}

    def listed(**asked):
        pages = bench.sagemaker.get_paginator("list_training_jobs").paginate(**asked)
        names = [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]
        return [name for name in names if name in created]

    hour = timedelta(hours=1)
    first, last = min(created.values()), max(created.values())
    for name in ("CreationTime", "LastModifiedTime"):
        assert listed(**{f"{name}After": first - hour}) == started
        assert listed(**{f"{name}Before": last + hour}) == started
        assert listed(**{f"{name}After": last + hour}) == listed(**{f"{name}Before": first - hour}) == []
    assert listed(CreationTimeAfter=created[started[1]] - timedelta(milliseconds=1)) == started[1:]
    assert listed(SortBy="CreationTime", SortOrder="Descending") == started[::-1]
    assert listed(SortBy="Name", SortOrder="Descending") == sorted(started, reverse=True)
    assert listed(StatusEquals="Completed", SortBy="Status") == started
    assert listed(NameContains=started[2], PaginationConfig={"PageSize": 1}) == started[2:]
    assert listed(SortOrder="Descending", PaginationConfig={"PageSize": 1}) == started[::-1]
    with pytest.raises(ClientError, match="Invalid pagination token"):
        bench.sagemaker.list_training_jobs(NextToken="x")
    after = bench.sagemaker.list_processing_jobs(CreationTimeAfter=last + hour, SortOrder="Descending")
    assert after["ProcessingJobSummaries"] == []


@pytest.mark.parametrize(("files", "lent"), [({}, 1), ({"requirements.txt": "# none\n"}, 1), ({"setup.py": ""}, 0)])
def test_the_log_states_that_the_endpoint_lent_its_packages(bench, files, lent):
    """A job without sm-profiler in its requirements had a profile here, and has none on SageMaker."""
    image = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312"
    algorithm = {"TrainingImage": image, "TrainingInputMode": "File"}
    name = bench.start("print(1)", files=files, Environment={"SM_PROFILER_AUTO": "1"}, AlgorithmSpecification=algorithm)
    bench.wait(name)
    line = "the local endpoint lent its own sm-profiler; on SageMaker, name sm-profiler[aws,gpu] in requirements.txt"
    assert bench.lines(name).count(line) == lent
    plain = bench.start("print(1)", AlgorithmSpecification=algorithm)
    bench.wait(plain)
    assert line not in bench.lines(plain)
