"""Rule jobs: start, status, output and end, as clients of the service see them."""

import json
import time

import pytest

RULES_IMAGE = "503895931360.dkr.ecr.us-east-1.amazonaws.com/sagemaker-debugger-rules:latest"
FINAL = ("NoIssuesFound", "IssuesFound", "Error", "Stopped")
CUSTOM = '''
class TooManySamples:
    """Fires at the first window with more system metrics than `most`."""

    def __init__(self, most="0"):
        self.most, self.report = int(most), {"RuleTriggered": 0, "Datapoints": 0}

    def update(self, window):
        self.report["Datapoints"] += len(window.system)
        fired = len(window.system) > self.most
        self.report["RuleTriggered"] += fired
        return fired

    def result(self):
        return self.report
'''


def rule(name="ProfilerReport", **parameters):
    return {
        "RuleConfigurationName": name,
        "RuleEvaluatorImage": RULES_IMAGE,
        "RuleParameters": {"rule_to_invoke": "ProfilerReport", **parameters},
    }


def final_rules(bench, name):
    return bench.until(
        lambda: bench.describe(name)["ProfilerRuleEvaluationStatuses"],
        lambda rules: all(entry["RuleEvaluationStatus"] in FINAL for entry in rules),
        90,
    )


@pytest.fixture(scope="module")
def judged(bench):
    """One short job with the report, a custom rule and an unknown rule."""
    bench.s3.put_object(Bucket=bench.local.bucket, Key="rules/mine.py", Body=CUSTOM.encode())
    custom = rule(
        "Mine", rule_to_invoke="TooManySamples", source_s3_uri=f"s3://{bench.local.bucket}/rules/mine.py", most="1"
    )
    name = bench.start(
        "import time\nprint('here', flush=True)\ntime.sleep(6)\n",
        ProfilerConfig={"S3OutputPath": f"s3://{bench.local.bucket}/judged", "ProfilingIntervalInMilliseconds": 100},
        ProfilerRuleConfigurations=[rule(), custom, rule("Unknown", rule_to_invoke="NoSuchRule")],
    )
    bench.wait_for_line(name, "here")
    during = bench.describe(name)["ProfilerRuleEvaluationStatuses"]
    bench.wait(name)
    return name, during, {entry["RuleConfigurationName"]: entry for entry in final_rules(bench, name)}


def test_rules_run_while_the_training_does(judged):
    _, during, _ = judged
    assert [entry["RuleEvaluationStatus"] for entry in during] == ["InProgress"] * 3


def test_each_rule_ends_in_a_status_of_the_api(judged):
    _, _, rules = judged
    assert rules["ProfilerReport"]["RuleEvaluationStatus"] in ("NoIssuesFound", "IssuesFound"), rules
    assert rules["Mine"]["RuleEvaluationStatus"] == "IssuesFound", rules
    assert "TooManySamples" in rules["Mine"]["StatusDetails"]
    assert rules["Unknown"]["RuleEvaluationStatus"] == "Error", rules
    assert "NoSuchRule" in rules["Unknown"]["StatusDetails"]


def test_report_and_system_metrics_are_on_s3(bench, judged):
    name, _, _ = judged
    prefix = f"judged/{name}/rule-output/ProfilerReport/profiler-output/"
    found = {key.removeprefix(prefix) for key in bench.keys(prefix)}
    assert {"profiler-report.html", "report.json", "profiler-reports/OverallSystemUsage.json"} <= found
    body = bench.s3.get_object(Bucket=bench.local.bucket, Key=prefix + "profiler-reports/OverallSystemUsage.json")[
        "Body"
    ]
    assert json.loads(body.read())["Datapoints"] > 20
    assert any("/system/incremental/" in key for key in bench.keys(f"judged/{name}/profiler-output/"))


def test_rule_jobs_are_processing_jobs_with_logs(bench, judged):
    _, _, rules = judged
    name = rules["Unknown"]["RuleEvaluationJobArn"].rpartition("/")[2]
    found = bench.sagemaker.describe_processing_job(ProcessingJobName=name)
    assert found["ProcessingJobStatus"] == "Failed"
    assert "NoSuchRule" in found["ExitMessage"]
    assert any("NoSuchRule" in line for line in bench.lines(name, "/aws/sagemaker/ProcessingJobs"))


def test_rules_can_be_added_to_a_running_job(bench):
    name = bench.start(
        "import time\ntime.sleep(60)\n", ProfilerConfig={"S3OutputPath": f"s3://{bench.local.bucket}/added"}
    )
    bench.until(lambda: bench.describe(name), lambda job: job["SecondaryStatus"] == "Training")
    bench.sagemaker.update_training_job(TrainingJobName=name, ProfilerRuleConfigurations=[rule()])
    assert bench.describe(name)["ProfilerRuleEvaluationStatuses"][0]["RuleEvaluationStatus"] == "InProgress"
    bench.sagemaker.stop_training_job(TrainingJobName=name)
    assert bench.wait(name)["TrainingJobStatus"] == "Stopped"
    assert final_rules(bench, name)[0]["RuleEvaluationStatus"] in FINAL


@pytest.mark.long
def test_system_metrics_continue_after_an_update_with_rules(bench):
    """The update's request restarts sampling and starts a rule, and ends while both are running."""
    name = bench.start(
        "import time\nprint('ready', flush=True)\ntime.sleep(12)\n",
        ProfilerConfig={
            "S3OutputPath": f"s3://{bench.local.bucket}/updated", "ProfilingIntervalInMilliseconds": 500
        },
    )  # fmt: skip
    bench.wait_for_line(name, "ready")
    bench.sagemaker.update_training_job(
        TrainingJobName=name,
        ProfilerConfig={"ProfilingIntervalInMilliseconds": 100},
        ProfilerRuleConfigurations=[rule()],
    )
    updated = time.time()
    bench.wait(name)
    rows = []
    for key in bench.keys(f"updated/{name}/profiler-output/system/incremental/"):
        body = bench.s3.get_object(Bucket=bench.local.bucket, Key=key)["Body"]
        rows += [json.loads(line) for line in body.read().splitlines()]
    assert max(row["Timestamp"] for row in rows if row["Type"] == "memory") > updated + 6


def processing(bench, name, **more):
    request = {
        "ProcessingJobName": name,
        "RoleArn": bench.local.role,
        "AppSpecification": {"ImageUri": RULES_IMAGE},
        "ProcessingResources": {
            "ClusterConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 1}
        },
        **more,
    }
    bench.sagemaker.create_processing_job(**request)
    return bench.until(
        lambda: bench.sagemaker.describe_processing_job(ProcessingJobName=name),
        lambda job: job["ProcessingJobStatus"] in ("Completed", "Failed", "Stopped"),
    )


def s3_input(uri, path="/opt/ml/processing/input/profiler"):
    source = {"S3Uri": uri, "LocalPath": path, "S3DataType": "S3Prefix", "S3InputMode": "File"}
    return {"InputName": path.rpartition("/")[2], "S3Input": source}


def s3_output(uri, path="/opt/ml/processing/output/rule"):
    target = {"S3Uri": uri, "LocalPath": path, "S3UploadMode": "EndOfJob"}
    return {"Outputs": [{"OutputName": "out", "S3Output": target}]}


def test_rule_image_runs_as_a_processing_job(bench, judged):
    name, _, _ = judged
    bucket = bench.local.bucket
    job = processing(
        bench,
        "rules-afterwards",
        ProcessingInputs=[s3_input(f"s3://{bucket}/judged/{name}/profiler-output")],
        ProcessingOutputConfig=s3_output(f"s3://{bucket}/afterwards"),
        Environment={"rule_to_invoke": "ProfilerReport"},
    )
    assert job["ProcessingJobStatus"] == "Completed", job
    assert "afterwards/profiler-output/profiler-report.html" in bench.keys("afterwards/")


def test_script_runs_as_a_processing_job(bench):
    bucket = bench.local.bucket
    script = (
        "import sys, pathlib\npathlib.Path(sys.argv[2]).write_text(pathlib.Path(sys.argv[1]).read_text().upper())\n"
    )
    bench.s3.put_object(Bucket=bucket, Key="steps/code/step.py", Body=script.encode())
    bench.s3.put_object(Bucket=bucket, Key="steps/data/a.txt", Body=b"words")
    base = "/opt/ml/processing"
    application = {
        "ImageUri": "python",
        "ContainerEntrypoint": ["python3", f"{base}/input/code/step.py"],
        "ContainerArguments": [f"{base}/input/data/a.txt", f"{base}/output/b.txt"],
    }
    job = processing(
        bench,
        "step",
        AppSpecification=application,
        ProcessingInputs=[
            s3_input(f"s3://{bucket}/steps/code/step.py", f"{base}/input/code"),
            s3_input(f"s3://{bucket}/steps/data", f"{base}/input/data"),
        ],
        ProcessingOutputConfig=s3_output(f"s3://{bucket}/steps/out", f"{base}/output"),
    )
    assert job["ProcessingJobStatus"] == "Completed", job
    assert bench.s3.get_object(Bucket=bucket, Key="steps/out/b.txt")["Body"].read() == b"WORDS"


def test_processing_jobs_fail_with_a_reason_and_can_be_stopped(bench):
    failed = processing(bench, "other-image", AppSpecification={"ImageUri": "postgres"})
    assert "nothing to run" in failed["FailureReason"]
    application = {"ImageUri": "x", "ContainerEntrypoint": ["python3", "-c", "import time; time.sleep(100)"]}
    request = {
        "ProcessingJobName": "long",
        "RoleArn": bench.local.role,
        "AppSpecification": application,
        "ProcessingResources": {
            "ClusterConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 1}
        },
    }
    bench.sagemaker.create_processing_job(**request)
    bench.sagemaker.stop_processing_job(ProcessingJobName="long")
    job = bench.until(
        lambda: bench.sagemaker.describe_processing_job(ProcessingJobName="long"),
        lambda job: job["ProcessingJobStatus"] not in ("InProgress", "Stopping"),
    )
    assert job["ProcessingJobStatus"] == "Stopped"


def test_rules_on_tensors_end_with_the_reason(bench):
    """They were accepted, and neither a status nor a line of the log mentioned them again."""
    rule = {"RuleConfigurationName": "LossNotDecreasing", "RuleEvaluatorImage": "503895931360.dkr.ecr.us-east-1.amazonaws.com/sagemaker-debugger-rules:latest"}  # fmt: skip
    name = bench.start(
        "print('hello')",
        DebugRuleConfigurations=[rule],
        DebugHookConfig={"S3OutputPath": f"s3://{bench.local.bucket}/tensors"},
    )
    (found,) = bench.wait(name)["DebugRuleEvaluationStatuses"]
    assert (found["RuleConfigurationName"], found["RuleEvaluationStatus"]) == ("LossNotDecreasing", "Error")
    assert found["StatusDetails"] == "not evaluated: sm-profiler records and judges no tensors"
    assert any("judges no tensors, not evaluated: LossNotDecreasing" in line for line in bench.lines(name))


def test_a_rule_of_a_job_whose_bucket_is_missing_ends_with_the_job(bench):
    """It went on for a minute after a job that had stored nothing."""
    rule = {"RuleConfigurationName": "ProfilerReport", "RuleEvaluatorImage": "sm-profiler:1", "RuleParameters": {"rule_to_invoke": "ProfilerReport"}}  # fmt: skip
    name = bench.start(
        "print('hello')",
        ProfilerConfig={"S3OutputPath": "s3://there-is-no-such-bucket/x"},
        ProfilerRuleConfigurations=[rule],
    )
    bench.wait(name)

    def status(job):
        return job["ProfilerRuleEvaluationStatuses"][0]

    over = bench.until(
        lambda: bench.describe(name), lambda job: status(job)["RuleEvaluationStatus"] != "InProgress", 40
    )
    assert status(over)["StatusDetails"].startswith("not evaluated: no profiler data in s3://there-is-no-such-bucket/")
