"""Hostile requests cannot freeze the endpoint or lead out of a job's folder."""

import json
import os
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest
from botocore.exceptions import ClientError

from sm_profiler.cli import main
from sm_profiler.local.endpoint import environment_at, is_own_client
from sm_profiler.local.output import LogStream, MetricMatcher
from sm_profiler.local.records import path_component
from sm_profiler.local.services import CLIENT_VARIABLES

CATASTROPHIC = "loss=(a+)+$"
HOSTILE_LINE = "loss=" + "a" * 60 + "!"


def test_catastrophic_regex_does_not_freeze_the_endpoint(bench):
    script = f"import time\nprint({HOSTILE_LINE!r}, flush=True)\ntime.sleep(2)\nprint('loss: 0.25', flush=True)\n"
    definitions = [{"Name": "hostile", "Regex": CATASTROPHIC}, {"Name": "loss", "Regex": "loss: ([0-9.]+)"}]
    algorithm = {"TrainingImage": "image", "TrainingInputMode": "File", "MetricDefinitions": definitions}
    name = bench.start(script, AlgorithmSpecification=algorithm)
    slowest = 0.0
    while bench.describe(name)["TrainingJobStatus"] == "InProgress":
        start = time.monotonic()
        bench.describe(name)
        slowest = max(slowest, time.monotonic() - start)
        time.sleep(0.05)
    job = bench.describe(name)
    assert job["TrainingJobStatus"] == "Completed", job["FailureReason"]
    assert slowest < 5
    assert [(metric["MetricName"], metric["Value"]) for metric in job["FinalMetricDataList"]] == [("loss", 0.25)]
    assert sum("the Regex of hostile took" in line for line in bench.lines(name)) == 1


def test_lines_that_cannot_be_searched_are_counted(monkeypatch):
    monkeypatch.setattr("sm_profiler.local.output.MAX_QUEUED", 3)
    monkeypatch.setattr("sm_profiler.local.output.CLOSE_S", 0.0)
    problems = []
    matcher = MetricMatcher([{"Name": "a", "Regex": "a (.*)"}], lambda *_: None, problems.append)
    start = time.monotonic()
    for _ in range(10_000):
        matcher.search("a 1")
    assert time.monotonic() - start < 5
    matcher.close()
    assert matcher.skipped > 0
    assert problems == [f"MetricDefinitions: {matcher.skipped} lines were not searched"]


@pytest.mark.parametrize("text", ["a nan", "a inf", "a 1e999", "a x", "a", "b 1"])
def test_values_that_are_not_finite_numbers_are_ignored(text):
    found = []
    matcher = MetricMatcher(
        [{"Name": "a", "Regex": "a ?(.*)"}, {"Name": "none", "Regex": "a"}, {"Name": "good", "Regex": "g=(.*)"}],
        lambda name, value: found.append((name, value)),
        pytest.fail,
    )
    matcher.search(text)
    matcher.search("g=2")
    matcher.close()
    assert found == [("good", 2.0)]


def refusal(bench, **changes):
    with pytest.raises(ClientError, match="ValidationException") as caught:
        bench.sagemaker.create_training_job(**bench.request("print(1)", **changes))
    return str(caught.value)


@pytest.mark.parametrize("expression", ["(", "(?P<a>x)(?P<a>y)", "a{99999999999999999999}"])
def test_invalid_regexes_are_refused(bench, expression):
    algorithm = {
        "TrainingImage": "image",
        "TrainingInputMode": "File",
        "MetricDefinitions": [{"Name": "a", "Regex": expression}],
    }
    assert "MetricDefinitions[0].Regex" in refusal(bench, AlgorithmSpecification=algorithm)


@pytest.mark.parametrize("name", [".", ".."])
def test_channel_names_cannot_leave_the_folder(bench, name):
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"s3://{bench.local.bucket}/data"}}
    assert "not a folder name" in refusal(bench, InputDataConfig=[{"ChannelName": name, "DataSource": source}])


@pytest.mark.first(2)
@pytest.mark.parametrize("name", ["../../../../escaped", "/escaped", "..", "a/b", "é\x1b[31m", "x" * 256])
def test_rule_names_cannot_leave_the_folder(bench, name):
    rule = {
        "RuleConfigurationName": name,
        "RuleEvaluatorImage": "image",
        "RuleParameters": {"rule_to_invoke": "ProfilerReport"},
    }
    before = set(bench.local.folder.parent.rglob("*escaped*"))
    job = bench.start(
        "import time\ntime.sleep(60)",
        ProfilerConfig={"S3OutputPath": f"s3://{bench.local.bucket}/hostile"},
        ProfilerRuleConfigurations=[rule],
    )
    rules = bench.local.folder / "jobs" / "training" / job / "rules"
    bench.until(lambda: list(rules.glob("*/ml")), bool)
    assert [path.parent for path in rules.iterdir()] == [rules]
    bench.sagemaker.stop_training_job(TrainingJobName=job)
    status = bench.wait(job)["ProfilerRuleEvaluationStatuses"][0]
    assert status["RuleConfigurationName"] == name
    assert set(bench.local.folder.parent.rglob("*escaped*")) - before <= set(rules.rglob("*"))


def test_path_components_are_safe_and_distinct():
    names = ["ProfilerReport", "..", ".", "a/b", "a_b", "a b", "\udcff", "x" * 300, "x" * 301]
    components = [path_component(name) for name in names]
    assert components[0] == "ProfilerReport"
    assert len(set(components)) == len(names)
    assert all(
        "/" not in component and not component.startswith(".") and len(component) < 128 for component in components
    )


@pytest.mark.first(2)
@pytest.mark.parametrize("path", ["/etc", "/opt/ml/../../outside", "relative", "/opt/mlx"])
@pytest.mark.parametrize("side", ["input", "output"])
def test_processing_paths_cannot_leave_the_folder(bench, path, side):
    request = {
        "ProcessingJobName": f"escape-{side}-{abs(hash(path)) % 10**9}",
        "RoleArn": bench.local.role,
        "AppSpecification": {"ImageUri": "x", "ContainerEntrypoint": ["true"]},
        "ProcessingResources": {
            "ClusterConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 1}
        },
    }
    uri = f"s3://{bench.local.bucket}/escape"
    bench.s3.put_object(Bucket=bench.local.bucket, Key="escape/file", Body=b"")
    if side == "input":
        source = {"S3Uri": uri, "LocalPath": path, "S3DataType": "S3Prefix", "S3InputMode": "File"}
        request["ProcessingInputs"] = [{"InputName": "a", "S3Input": source}]
    else:
        target = {"S3Uri": uri, "LocalPath": path, "S3UploadMode": "EndOfJob"}
        request["ProcessingOutputConfig"] = {"Outputs": [{"OutputName": "a", "S3Output": target}]}
    bench.sagemaker.create_processing_job(**request)
    job = bench.until(
        lambda: bench.sagemaker.describe_processing_job(ProcessingJobName=request["ProcessingJobName"]),
        lambda job: job["ProcessingJobStatus"] != "InProgress",
    )
    assert "not in /opt/ml" in job["FailureReason"]


def test_program_cannot_leave_the_source_code(bench):
    job = bench.run("", hyperparameters={"sagemaker_program": '"../../../../../../../../etc/passwd"'})
    assert "has no file" in job["FailureReason"]


class Impostor(BaseHTTPRequestHandler):
    """Another user's program on the endpoint's port."""

    environment: ClassVar[dict] = {}

    def do_GET(self):
        body = json.dumps(self.environment).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "http://evil.example"])
def test_env_of_an_impostor_executes_nothing(url, capsys):
    with HTTPServer(("127.0.0.1", 0), Impostor) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port
        Impostor.environment = {
            "AWS_ENDPOINT_URL": url.format(port=port),
            "AWS_REGION": "$(touch /tmp/executed)",
            "x; touch /tmp/executed #": "",
            "LD_PRELOAD": "/tmp/evil.so",
            "PATH": "/tmp/evil",
            "AWS_ACCESS_KEY_ID": 1,
        }
        if "evil" in url:
            assert environment_at(port) is None
        else:
            assert main(["local", "--env", "--port", str(port)]) == 0
            assert capsys.readouterr().out.splitlines() == [
                f"export AWS_ENDPOINT_URL=http://127.0.0.1:{port}", "export AWS_REGION='$(touch /tmp/executed)'",
            ]  # fmt: skip
        server.shutdown()


def test_env_ignores_a_program_of_another_user(bench, monkeypatch):
    port = int(bench.local.url.rpartition(":")[2])
    assert environment_at(port) == bench.local.environment
    monkeypatch.setattr("os.getuid", lambda: 65_534)
    assert environment_at(port) is None


def test_only_open_connections_of_the_same_user_are_answered(bench, monkeypatch):
    port = int(bench.local.url.rpartition(":")[2])
    for family, address in [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")]:
        with socket.socket(family) as client:
            client.connect((address, port))
            client_port = client.getsockname()[1]
            assert is_own_client(client_port, port)
            with monkeypatch.context() as other_user:
                other_user.setattr("os.getuid", lambda: 65_534)
                assert not is_own_client(client_port, port)
        assert not is_own_client(client_port, port)


def test_no_client_is_refused_if_the_system_reports_no_owners(bench, monkeypatch, tmp_path):
    monkeypatch.setattr("sm_profiler.local.endpoint.TABLES", (tmp_path / "missing",))
    assert is_own_client(1, int(bench.local.url.rpartition(":")[2]))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_other_users_cannot_start_jobs(bench):
    port = int(bench.local.url.rpartition(":")[2])
    code = (
        "import http.client\n"
        f"connection = http.client.HTTPConnection('127.0.0.1', {port}, timeout=10)\n"
        "connection.request('POST', '/', '{}', {'X-Amz-Target': 'SageMaker.ListTrainingJobs'})\n"
        "print(connection.getresponse().status)\n"
    )
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-c", code], user=65_534, capture_output=True, text=True, check=True
    )
    assert done.stdout == "403\n"


def test_environment_has_only_the_listed_variables(bench, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    assert set(bench.local.services.client_environment()) == set(CLIENT_VARIABLES)


class MemoryLogs:
    """A CloudWatch Logs client that keeps messages."""

    class exceptions:  # as boto3 names it
        ResourceAlreadyExistsException = KeyError

    def __init__(self):
        self.messages = []

    def create_log_group(self, **_):
        pass

    create_log_stream = create_log_group

    def put_log_events(self, logEvents, **_):  # as boto3 names it
        self.messages += [event["message"] for event in logEvents]


def test_endless_output_is_bounded_and_counted(monkeypatch):
    monkeypatch.setattr("sm_profiler.local.output.MAX_STREAM", 10_000)
    client = MemoryLogs()
    stream = LogStream(client, "group", "stream")
    for _ in range(1000):
        stream.write("x" * 99)
    stream.close()
    assert sum(map(len, client.messages[:-1])) <= 10_000
    assert stream.dropped == 1000 - len(client.messages[:-1])
    assert client.messages[-1].startswith(f"{stream.dropped} more lines")
    assert stream.tail[0] == "x" * 99  # for the FailureReason


@pytest.mark.first(2)
@pytest.mark.parametrize("value", ["[1]", "5", "null", "[" * 2000, '{"a": 1}', '"a\\u0000"'])
@pytest.mark.parametrize("name", ["sagemaker_program", "sagemaker_submit_directory"])
def test_hyperparameters_of_wrong_types_fail_the_job_with_a_reason(bench, name, value):
    job = bench.run("print(1)", hyperparameters={name: value})
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"].startswith("ClientError: ")
