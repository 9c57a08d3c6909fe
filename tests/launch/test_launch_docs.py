"""The code in docs/launching.md and docs/configuration.md runs, and sends the requests described there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from sm_profiler.cli import main
from sm_profiler.config import config_from_environment, load_profile
from sm_profiler.launch import check_request

ROOT = Path(__file__).parents[2]
LAUNCHING, CONFIGURATION = ROOT / "docs/launching.md", ROOT / "docs/configuration.md"
FIRST = ROOT / "docs/first-job.md"


def run(document, label, python, tmp_path):
    settings = tmp_path / "sdk.yaml"
    settings.write_text("SchemaVersion: '1.0'\nSageMaker:\n  PythonSDK:\n    Modules:\n      TelemetryOptOut: true\n")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "SAGEMAKER_USER_CONFIG_OVERRIDE": str(settings),
        "SAGEMAKER_VALIDATE_ROLE": "false",
        "SM_PROFILER_SETTINGS": str(tmp_path / "settings.json"),
    }
    environment.pop("SM_PROFILER_RULE_IMAGE", None)
    program = Path(__file__).with_name("docs_program.py")
    shown = subprocess.run(
        [str(python), str(program), str(document), label],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    found = [line for line in shown.stdout.splitlines() if line.startswith("RESULTS ")]
    assert found, shown.stderr[-3000:]
    return json.loads(found[0].removeprefix("RESULTS "))


def assert_served(request):
    assert request["ProfilerConfig"]["ProfilingParameters"]["DetailedProfilingConfig"]
    assert request["ProfilerConfig"]["S3OutputPath"].startswith("s3://")
    assert request["Environment"]["SM_PROFILER_AUTO"] == "1"
    assert check_request("CreateTrainingJob", request) == []


@pytest.mark.slow
@pytest.mark.sdk2
def test_examples_for_sdk_v2_and_boto3(tmp_path):
    results = run(LAUNCHING, "v2", sys.executable, tmp_path)
    assert [len(requests) for requests in results] == [1, 1, 1, 1, 1]
    estimator, attached, boto, session, agent = (requests[0] for requests in results)
    for request in (estimator, attached, boto, session):
        assert_served(request)
    assert estimator["ProfilerRuleConfigurations"][0]["RuleConfigurationName"] == "ProfilerReport"
    assert boto["ProfilerRuleConfigurations"][0]["RuleConfigurationName"] == "report"
    assert agent["ProfilerConfig"] == {"DisableProfiler": True}
    assert load_profile(config_from_environment(agent["Environment"])).s3_output_path


@pytest.mark.slow
@pytest.mark.sdk2
def test_example_of_the_first_job(tmp_path):
    ((request,),) = run(FIRST, "v2", sys.executable, tmp_path)
    assert request["ProfilerConfig"] == {"DisableProfiler": True}
    assert load_profile(config_from_environment(request["Environment"])).s3_output_path


@pytest.mark.slow
@pytest.mark.sdk3
def test_examples_for_sdk_v3(sdk3_python, tmp_path):
    results = run(LAUNCHING, "v3", sdk3_python, tmp_path)
    assert [len(requests) for requests in results] == [1, 1]
    for (request,) in results:
        assert_served(request)


def test_example_of_a_configuration_in_python(capsys):
    (code,) = re.findall(r"<!-- runs with: plain -->\n```python\n(.*?)```", CONFIGURATION.read_text(), re.DOTALL)
    exec(compile(code, str(CONFIGURATION), "exec"), {})  # noqa: S102 - our own document
    assert "Steps 100 to 101: operators and kernels." in capsys.readouterr().out


def test_example_of_a_configuration_as_json(tmp_path, capsys):
    (text,) = re.findall(r"<!-- validates -->\n```json\n(.*?)```", CONFIGURATION.read_text(), re.DOTALL)
    path = tmp_path / "config.json"
    path.write_text(text)
    assert main(["validate", str(path)]) == 0
    assert "Step 5: operators and kernels." in capsys.readouterr().out


def test_s3_accepts_the_lifecycle_configuration_of_the_operating_page():
    text = (ROOT / "docs/operating.md").read_text()
    (rules,) = re.findall(r"<!-- lifecycle -->\n```json\n(.*?)```", text, re.DOTALL)
    with mock_aws():
        client = boto3.client("s3", "us-east-1", aws_access_key_id="a", aws_secret_access_key="b")  # no account
        client.create_bucket(Bucket="my-bucket")
        client.put_bucket_lifecycle_configuration(Bucket="my-bucket", LifecycleConfiguration=json.loads(rules))
        (rule,) = client.get_bucket_lifecycle_configuration(Bucket="my-bucket")["Rules"]
    assert (rule["Expiration"]["Days"], rule["Filter"]["Prefix"]) == (90, "profiles/")


def test_every_code_block_is_tested():
    for document in (LAUNCHING, CONFIGURATION, FIRST):
        text = document.read_text()
        assert text.count("```python") == text.count("<!-- runs with: ")
