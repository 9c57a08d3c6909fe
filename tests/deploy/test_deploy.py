"""Deploying the rule image and starting rules, by command and from Python, against moto."""

import json
import re
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from sm_profiler.cli import main
from sm_profiler.deploy import deploy_image, find_recipe, start_rules
from sm_profiler.errors import ConfigError
from sm_profiler.storage import AccessDeniedError

REPO = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _aws(monkeypatch):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "eu-west-1",
    }.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        yield


@pytest.fixture
def builder(tmp_path, monkeypatch):
    """A builder that only records how it was called."""
    notes = tmp_path / "notes"
    script = tmp_path / "bin/buildah"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\necho "$0 $*" >> {notes}\nif [ "$1" = login ]; then cat > {tmp_path}/secret; fi\n')
    script.chmod(0o755)
    recipe = tmp_path / "rule_container/build.sh"
    recipe.parent.mkdir()
    recipe.write_text(f'#!/bin/sh\necho "build $1 base=$BASE_IMAGE" >> {notes}\n')
    recipe.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    return tmp_path


def test_deploy_creates_builds_and_pushes(builder, capsys):
    code = main(
        ["deploy", "--repository", "team/rules", "--tag", "7", "--context", str(builder), "--base-image", "mine:1"]
    )
    assert code == 0
    image = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/team/rules:7"
    lines = (builder / "notes").read_text().splitlines()
    assert lines[0] == f"build {image} base=mine:1"
    assert lines[1].endswith("login --username AWS --password-stdin 123456789012.dkr.ecr.eu-west-1.amazonaws.com")
    assert lines[2].endswith(f"push {image}")
    assert (builder / "secret").read_text()
    shown = capsys.readouterr()
    assert f'image_uri="{image}"' in shown.out
    assert (builder / "secret").read_text() not in shown.err + shown.out
    (repository,) = boto3.client("ecr").describe_repositories()["repositories"]
    assert repository["imageTagMutability"] == "IMMUTABLE"
    assert repository["imageScanningConfiguration"] == {"scanOnPush": True}


def test_dry_run_prints_all_steps_and_changes_nothing(builder, capsys):
    assert main(["deploy", "--repository", "rules", "--context", str(builder), "--dry-run"]) == 0
    shown = capsys.readouterr().err
    for step in (
        "ecr.describe_repositories",
        "ecr.create_repository",
        "build.sh",
        "ecr.get_authorization_token",
        "login",
        "push",
    ):
        assert step in shown
    assert not (builder / "notes").exists()
    assert boto3.client("ecr").describe_repositories()["repositories"] == []


def test_uses_an_existing_repository(builder):
    boto3.client("ecr").create_repository(repositoryName="rules")
    assert main(["deploy", "--repository", "rules", "--context", str(builder)]) == 0
    assert len(boto3.client("ecr").describe_repositories()["repositories"]) == 1


def test_failing_build_is_one_line(builder, capsys):
    (builder / "rule_container/build.sh").write_text("#!/bin/sh\nexit 3\n")
    assert main(["deploy", "--repository", "rules", "--context", str(builder)]) == 2
    assert (
        capsys.readouterr().err.splitlines()[-1]
        == "sm-profiler: build.sh 123456789012.dkr.ecr.eu-west-1.amazonaws.com/rules:0.1.0 ended with exit code 3"
    )
    assert not (builder / "notes").exists()


def test_build_needs_a_checkout(tmp_path, capsys):
    assert main(["deploy", "--repository", "rules", "--context", str(tmp_path)]) == 2
    assert "checkout" in capsys.readouterr().err
    assert find_recipe(None) == REPO / "rule_container/build.sh"


PROFILE = "out/{}/profiler-output/system/incremental/2026112300/1795392000.algo-1.json"


@pytest.mark.parametrize(
    ("command", "opening"),
    [
        (["report", "svc-slow"], "svc-slow is not a folder, and training job svc-slow"),
        (["report", "account:eu-west-1/svc-slow"], "training job svc-slow"),
        (
            ["rules", "start", "--job", "svc-slow", "--role", "arn:aws:iam::1:role/x", "--image", "i"],
            "training job svc-slow",
        ),
        (["watch", "account:eu-west-1/svc-slow"], "training job svc-slow"),
    ],
)
def test_a_job_of_another_region_or_name_is_reported_with_the_region(capsys, command, opening):
    assert main(command) == 2
    error = capsys.readouterr().err
    assert f"{opening} does not exist in eu-west-1 (Could not find training job" in error
    named = any("eu-west-1" in part for part in command)
    other = "name that region" if named else "set AWS_REGION, or write account:REGION/svc-slow"
    assert f"To do: check the name; for a job of another region, {other}" in error


def training_job(name, *, profiled=True):
    if profiled:
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        s3.put_object(Bucket="bucket", Key=PROFILE.format(name), Body=b"{}")
    role = "arn:aws:iam::123456789012:role/train"
    boto3.client("sagemaker").create_training_job(
        TrainingJobName=name,
        RoleArn=role,
        AlgorithmSpecification={"TrainingImage": "image", "TrainingInputMode": "File"},
        OutputDataConfig={"S3OutputPath": "s3://bucket/out"},
        ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        StoppingCondition={"MaxRuntimeInSeconds": 60},
    )
    return role


def test_rules_start_creates_a_processing_job(capsys, tmp_path):
    role = training_job("my-job")
    parameters = tmp_path / "parameters.json"
    parameters.write_text('{"CPUBottleneck_threshold": 30}')
    words = ["rules", "start", "--training-role", "--job", "my-job", "--image", "repository/rules:1"]
    words += ["--parameters", str(parameters)]
    assert main([*words, "--dry-run"]) == 0
    request = json.loads(capsys.readouterr().out)
    assert boto3.client("sagemaker").list_processing_jobs()["ProcessingJobSummaries"] == []
    assert request["Environment"]["CPUBottleneck_threshold"] == "30"
    assert request["Environment"]["SM_PROFILER_SOURCE"] == "s3://bucket/out/my-job/profiler-output"
    assert main(words) == 0
    shown = capsys.readouterr()
    assert shown.out.strip() == "s3://bucket/out/my-job/rule-output/ProfilerReport/profiler-output/profiler-report.html"
    (summary,) = boto3.client("sagemaker").list_processing_jobs()["ProcessingJobSummaries"]
    job = boto3.client("sagemaker").describe_processing_job(ProcessingJobName=summary["ProcessingJobName"])
    assert job["RoleArn"] == role
    assert job["AppSpecification"] == {"ImageUri": "repository/rules:1"}
    assert len(summary["ProcessingJobName"]) <= 63


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--job", "nope", "--image", "i"], "nope"),
        (["--job", "my-job"], "no rule image"),
        (["--job", "my-job", "--image", "i", "--parameters", "/nowhere.json"], "cannot be read"),
        (["--job", "my-job", "--image", "i", "--source", "s3://b/" + "x" * 300], "256 characters"),
        (
            ["--job", "my-job", "--image", "i", "--source", "no.py", "--rule", "Mine"],
            "neither an S3 URI nor a local file",
        ),
    ],
)
def test_rules_start_reports_mistakes_in_one_line(words, message, capsys, monkeypatch):
    monkeypatch.delenv("SM_PROFILER_RULE_IMAGE", raising=False)
    training_job("my-job")
    assert main(["rules", "start", "--training-role", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("words", [["rules", "start", "--job"], ["report", "--on-sagemaker"]], ids=["rules", "report"])
def test_a_job_without_a_profile_is_refused_before_a_paid_job_starts(words, capsys):
    training_job("my-job", profiled=False)
    boto3.client("s3").create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    words = [*words, "my-job", "--image", "i", "--training-role"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "training job my-job has no profile: the profiler was not switched on" in error
    assert "Looked in s3://bucket/out/my-job/profiler-output." in error
    assert "attach(…)" in error
    assert "--force" in error
    assert boto3.client("sagemaker").list_processing_jobs()["ProcessingJobSummaries"] == []


def test_rules_wait_for_a_profile_that_is_to_come(monkeypatch, capsys):
    training_job("my-job", profiled=False)
    words = ["rules", "start", "--job", "my-job", "--image", "i", "--training-role"]
    assert main([*words, "--force"]) == 0
    words[-1:] = ["--role", "arn:aws:iam::123456789012:role/rules"]
    config = {"S3OutputPath": "s3://bucket/out"}
    running = {"TrainingJobStatus": "InProgress", "ProfilerConfig": config, "TrainingJobName": "my-job"}
    monkeypatch.setattr("sm_profiler.deploy.describe", lambda *_, **__: running)
    monkeypatch.setattr("sm_profiler.deploy.stored_profile", lambda *_, **__: None)
    assert main([*words, "--dry-run"]) == 0
    running["ProfilerConfig"] = {**config, "DisableProfiler": True}
    assert main([*words, "--dry-run"]) == 2
    assert "DisableProfiler is true" in capsys.readouterr().err


def test_without_the_right_to_list_the_bucket_the_rules_start(monkeypatch):
    training_job("my-job", profiled=False)

    def denied(*_, **__):
        raise AccessDeniedError("s3://bucket: access denied")

    monkeypatch.setattr("sm_profiler.deploy.stored_profile", denied)
    assert main(["rules", "start", "--job", "my-job", "--image", "i", "--training-role"]) == 0


def test_rules_start_takes_the_arn_of_a_job():
    training_job("my-job")
    arn = "arn:aws:sagemaker:eu-west-1:123456789012:training-job/my-job"
    started = start_rules(arn, image="i", role=None, dry_run=True)
    assert started.name.startswith("my-job-rules-")


def test_rules_start_uploads_a_local_rule(tmp_path, capsys):
    training_job("my-job")
    s3 = boto3.client("s3")
    (tmp_path / "mine.py").write_text("class Mine: pass")
    words = ["rules", "start", "--training-role", "--job", "my-job", "--image", "i", "--rule", "Mine"]
    words += ["--source", str(tmp_path / "mine.py")]
    assert main([*words, "--dry-run"]) == 0
    assert s3.list_objects_v2(Bucket="bucket")["KeyCount"] == 1
    local = str(tmp_path / "mine.py")
    started = start_rules("my-job", image="i", role=None, rule="Mine", source=local)
    source = started.request["Environment"]["source_s3_uri"]
    assert re.fullmatch(r"s3://bucket/out/my-job/rule-source/Mine/[0-9a-f-]{36}/mine\.py", source)
    key = source.removeprefix("s3://bucket/")
    assert s3.get_object(Bucket="bucket", Key=key)["Body"].read() == b"class Mine: pass"
    for each in (key, PROFILE.format("my-job")):
        s3.delete_object(Bucket="bucket", Key=each)
    s3.delete_bucket(Bucket="bucket")
    capsys.readouterr()
    assert main([*words, "--force"]) == 2
    assert "mine.py could not be uploaded" in capsys.readouterr().err
    assert len(boto3.client("sagemaker").list_processing_jobs()["ProcessingJobSummaries"]) == 1


def test_a_report_that_will_be_replaced_is_named(caplog):
    training_job("my-job")
    start_rules("my-job", image="i", role=None)
    assert caplog.messages == []
    output = "out/my-job/rule-output/ProfilerReport/profiler-output"
    boto3.client("s3").put_object(Bucket="bucket", Key=f"{output}/report.json", Body=b"{}")
    start_rules("my-job", image="i", role=None)
    assert caplog.messages == [f"s3://bucket/{output} has the report of an earlier evaluation: the new one replaces it"]
    start_rules("my-job", image="i", role=None, rule="StepOutlier")
    assert len(caplog.messages) == 1


def test_a_role_by_name_is_refused_with_its_arn_in_the_hint(capsys):
    training_job("my-job")
    assert main(["rules", "start", "--job", "my-job", "--image", "i", "--role", "myrole"]) == 2
    error = capsys.readouterr().err
    assert "role 'myrole' is not an ARN" in error
    assert "aws iam get-role --role-name myrole" in error


def test_python_api_deploys_and_starts(builder):
    steps = []
    image = deploy_image("rules", tag="7", context=builder, on_step=steps.append)
    assert image == "123456789012.dkr.ecr.eu-west-1.amazonaws.com/rules:7"
    assert steps[-1].endswith(f"push {image}")
    role = training_job("my-job")
    started = start_rules("my-job", image=image, role=None, rule="cpubottleneck", dry_run=True)
    assert started.report_uri == (
        "s3://bucket/out/my-job/rule-output/CPUBottleneck/profiler-output/profiler-report.html"
    )
    assert started.request["RoleArn"] == role
    assert started.request["Environment"]["rule_to_invoke"] == "CPUBottleneck"
    assert boto3.client("sagemaker").list_processing_jobs()["ProcessingJobSummaries"] == []


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("CPUBotleneck", "no rule CPUBotleneck; did you mean CPUBottleneck?"),
        ("Mine", "no rule Mine; built-in rules: ProfilerReport, CPUBottleneck"),
    ],
)
def test_rejects_an_unknown_rule_before_a_paid_job_starts(rule, message, capsys):
    training_job("my-job")
    with pytest.raises(ConfigError, match=re.escape(message)):
        start_rules("my-job", image="i", role=None, rule=rule)
    assert main(["rules", "start", "--job", "my-job", "--image", "i", "--role", "r", "--rule", rule]) == 2
    assert message in capsys.readouterr().err
    assert boto3.client("sagemaker").list_processing_jobs()["ProcessingJobSummaries"] == []
    source = "s3://bucket/mine.py"
    started = start_rules("my-job", image="i", role=None, rule=rule, source=source, dry_run=True)
    assert started.request["Environment"]["rule_to_invoke"] == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class MemoryMargin: pass", "has no class MemoryMargn; it has: MemoryMargin"),
        ("limit = 3", "has no class MemoryMargn; it has: no class"),
        ("class MemoryMargn(:", "cannot be read as Python: invalid syntax"),
        ("from mine import MemoryMargn", ""),
        ("import mine as MemoryMargn", ""),
        ("from mine import *", ""),
        ("if True:\n    MemoryMargn = make()", ""),
    ],
)
def test_a_file_without_the_class_is_refused_before_a_paid_job_starts(text, message, tmp_path):
    training_job("my-job")
    (tmp_path / "memory.py").write_text(text)
    arguments = {"image": "i", "role": None, "rule": "MemoryMargn", "source": str(tmp_path / "memory.py")}
    if not message:
        assert start_rules("my-job", **arguments, dry_run=True).request
        return
    with pytest.raises(ConfigError, match=re.escape(message)):
        start_rules("my-job", **arguments)
    assert boto3.client("sagemaker").list_processing_jobs()["ProcessingJobSummaries"] == []


@pytest.mark.parametrize(
    ("rule", "parameters", "message"),
    [
        ("ProfilerReport", {"CPUBottleneck_treshold": 60}, "CPUBottleneck has no parameter 'treshold'"),
        ("ProfilerReport", {"CPUBotleneck_threshold": 60}, "invalid rule name"),
        ("LowGPUUtilization", {"threshold_p95": 101}, "threshold_p95 must be a valid percentile"),
        ("StepOutlier", {"n_outlierz": 1}, "StepOutlier has no parameter 'n_outlierz'"),
        ("StepOutlier", {"rule_compat": "servce"}, "'servce'"),
        (
            "StepOutlier",
            {"n_outliers": 1, "StepOutlier_stddev": 2, "rule_timeout_secs": 9, "SM_PROFILER_POLL_S": 1},
            "",
        ),
        ("Mine", {"limits": 3}, "Mine has no parameter 'limits'; it has: limit"),
        ("Mine", {"Mine_limit": 3, "scan_interval_us": 60000000}, ""),
        ("Old", {"limit_s": 3}, ""),
        ("Any", {"limit_s": 3}, ""),
    ],
)
def test_a_parameter_that_the_rule_would_refuse_is_refused_before_a_paid_job_starts(
    rule, parameters, message, tmp_path
):
    training_job("my-job")
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    def __init__(self, limit=1): pass\n"
        "class Old(Base):\n    def __init__(self, base_trial, limit_s='1'): pass\n"
        "class Any(Old):\n    x = 1\n"
    )
    own = {"source": str(tmp_path / "mine.py")} if rule in {"Mine", "Old", "Any"} else {}
    arguments = {"image": "i", "role": None, "rule": rule, "parameters": parameters, **own}
    if not message:
        assert start_rules("my-job", **arguments).request
        return
    with pytest.raises(ConfigError, match=re.escape(message)):
        start_rules("my-job", **arguments)
    assert boto3.client("sagemaker").list_processing_jobs()["ProcessingJobSummaries"] == []


@pytest.mark.parametrize("name", ["BAD_Repo!", "Rules", "a", "team//rules", "-rules", "x" * 257])
def test_a_repository_that_ecr_would_refuse_is_refused_at_once(name, builder):
    with pytest.raises(ConfigError, match="ECR accepts"):
        deploy_image(name, context=builder, dry_run=True)


def test_rules_start_needs_an_explicit_role(capsys):
    role = training_job("my-job")
    words = ["rules", "start", "--job", "my-job", "--image", "i"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "one of the arguments --role --training-role is required" in capsys.readouterr().err
    roles = {}
    for choice in (["--role", "arn:aws:iam::123456789012:role/rules"], ["--training-role"]):
        assert main([*words, *choice, "--dry-run"]) == 0
        roles[choice[0]] = json.loads(capsys.readouterr().out)["RoleArn"]
    assert roles == {"--role": "arn:aws:iam::123456789012:role/rules", "--training-role": role}


@pytest.mark.parametrize(
    "settings",
    [{"AWS_ENDPOINT_URL": "nonsense"}, {"AWS_PROFILE": "no-such-profile"}, {"AWS_DEFAULT_REGION": "\x1b[31m"}],
)
@pytest.mark.parametrize(
    "words", [["deploy", "--repository", "r"], ["rules", "start", "--job", "j", "--image", "i", "--role", "r"]]
)
def test_broken_aws_settings_are_one_line(settings, words, builder, monkeypatch, capsys):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    context = ["--context", str(builder)] if words[0] == "deploy" else []
    assert main([*words, *context]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("sm-profiler: ")
    assert error.isprintable()


def test_several_instances(capsys):
    training_job("my-job")
    words = ["rules", "start", "--job", "my-job", "--image", "i", "--training-role", "--dry-run"]
    clusters = []
    for more in ([], ["--instances", "4"], ["--instances", "4", "--instance-type", "ml.c5.xlarge"]):
        assert main([*words, *more]) == 0
        clusters.append(json.loads(capsys.readouterr().out)["ProcessingResources"]["ClusterConfig"])
    assert [(one["InstanceCount"], one["InstanceType"]) for one in clusters] == [
        (1, "ml.t3.medium"),
        (4, "ml.m5.xlarge"),
        (4, "ml.c5.xlarge"),
    ]
    assert main([*words, "--instances", "101"]) == 2
    assert "101 instances: must be from 1 to 100" in capsys.readouterr().err


def test_report_on_sagemaker_waits_and_prints_the_verdict(capsys, monkeypatch):
    training_job("my-job")
    answers = [("Completed", "INPUT_BOUND (high confidence)."), ("Failed", "AlgorithmError: exit code 1")]
    monkeypatch.setattr("sm_profiler.deploy.wait_for_end", lambda *_, **__: answers.pop(0))
    words = ["report", "my-job", "--on-sagemaker", "--image", "i", "--instances", "2"]
    assert main([*words, "--training-role"]) == 0
    verdict, page = capsys.readouterr().out.splitlines()
    assert verdict == "INPUT_BOUND (high confidence)."
    assert page == "s3://bucket/out/my-job/rule-output/ProfilerReport/profiler-output/profiler-report.html"
    assert len(boto3.client("sagemaker").list_processing_jobs()["ProcessingJobSummaries"]) == 1
    for more, message in (
        ([], "give --role, or --training-role"),
        (["--training-role", "--follow"], "--follow has no effect with --on-sagemaker"),
        (["--training-role", "--prices", "p.json"], "--prices has no effect"),
    ):
        assert main([*words, *more]) == 2
        assert message in capsys.readouterr().err


def test_failed_processing_job_is_one_line(capsys, monkeypatch):
    training_job("my-job")
    monkeypatch.setattr("sm_profiler.deploy.wait_for_end", lambda *_, **__: ("Failed", "AlgorithmError: exit code 1"))
    assert main(["report", "my-job", "--on-sagemaker", "--image", "i", "--training-role"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(": Failed: AlgorithmError: exit code 1")


def test_waits_until_a_processing_job_has_ended(monkeypatch):
    from sm_profiler import deploy as rule_job

    states = [
        {"ProcessingJobStatus": "InProgress"},
        {"ProcessingJobStatus": "Stopping"},
        {"ProcessingJobStatus": "Stopped", "ExitMessage": "so far"},
    ]

    class Client:
        def describe_processing_job(self, **_):
            return states.pop(0)

    monkeypatch.setattr(rule_job, "create_api_client", lambda *_, **__: Client())
    seen = []
    assert rule_job.wait_for_end("job", poll_s=0, waiting=seen.append) == ("Stopped", "so far")
    assert seen == ["InProgress", "Stopping"]
