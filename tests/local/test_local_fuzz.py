"""Malformed requests of all kinds: each is answered, in bounded time and memory, and the endpoint goes on serving."""

import contextlib
import gzip
import http.client
import json
import random
import socket
import threading
import time
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

TARGETS = [
    "CreateTrainingJob",
    "DescribeTrainingJob",
    "UpdateTrainingJob",
    "StopTrainingJob",
    "CreateProcessingJob",
    "DescribeProcessingJob",
    "StopProcessingJob",
    "ListTrainingJobs",
    "ListProcessingJobs",
    "Search",
    "ListTags",
    "AddTags",
    "CreateModel",
    "DeleteModel",
    "Nothing",
    "__class__",
    "call_action",
    "_stop",
    "../x",
]
BODIES = [
    b"", b"[]", b"null", b'"x"', b"1e999", b"{", b"\xff\xfe", b"{}{}", b"[" * 100_000, b'{"a":' * 50_000,
    b'{"TrainingJobName": null}', b'{"TrainingJobName": ["a"]}', b'{"ProcessingJobName": {"a": 1}}',
    b'{"TrainingJobName": "nope", "ProfilerConfig": []}', b'{"MaxResults": "x"}', b'{"ResourceArn": 1, "Tags": {}}',
    b'{"Resource": 1, "SearchExpression": {"Filters": [{"Name": "x"}]}}', b'{"TrainingJobName": "\\ud800"}',
]  # fmt: skip
VALUES = [
    None, True, 0, -1, 10**400, float("nan"), float("inf"), "", "x" * 100_000, "../../..", "a\0b", "\ud800", [], {}, [None],
    {"": None}, [[[]]], {"a": {"a": {}}},
]  # fmt: skip
SIGNED = "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/sagemaker/aws4_request, SignedHeaders=host, Signature=0"
TIME_S = 20


def call(local, method="POST", path="/", body=b"", headers=None):
    """Return status and body of one raw request."""
    connection = http.client.HTTPConnection("127.0.0.1", int(local.url.rpartition(":")[2]), timeout=TIME_S)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def sagemaker(local, target, body):
    headers = {
        "X-Amz-Target": f"SageMaker.{target}",
        "Content-Type": "application/x-amz-json-1.1",
        "Authorization": SIGNED,
    }
    return call(local, body=body, headers=headers)


def paths(value, path=()):
    """Yield the path of each part of a request."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from paths(part, (*path, key))


def replaced(request, path, value):
    if not path:
        return value
    request = json.loads(json.dumps(request))
    part = request
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return request


def memory_mb(local):
    pid = local._process.pid
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


def answers(local):
    assert local.client("sagemaker").list_training_jobs(MaxResults=1)["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_values_of_wrong_types_are_refused(bench):
    local = bench.local
    request = bench.request("")
    request |= {
        "InputDataConfig": [
            {"ChannelName": "c", "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://x/y"}}}
        ],
        "ProfilerConfig": {"S3OutputPath": "s3://a/b", "ProfilingParameters": {"a": "b"}},
        "ProfilerRuleConfigurations": [{"RuleConfigurationName": "r", "RuleEvaluatorImage": "i"}],
        "Environment": {"A": "b"},
    }
    request["AlgorithmSpecification"]["MetricDefinitions"] = [{"Name": "a", "Regex": "b"}]
    cases = [(path, value) for path in paths(request) for value in VALUES]
    random.Random(7).shuffle(cases)  # a fixed selection
    before = memory_mb(local)
    for number, (path, value) in enumerate(cases[:120]):
        start = time.monotonic()
        body = replaced(request, path, value)
        if isinstance(body, dict) and body.get("TrainingJobName") == request["TrainingJobName"]:
            body["TrainingJobName"] = f"fuzz-{number}"
        status, text = sagemaker(local, "CreateTrainingJob", json.dumps(body).encode())
        assert status in (200, 400), (path, value, status, text[-300:])
        assert time.monotonic() - start < TIME_S
        if status == 200:
            with contextlib.suppress(ClientError):  # it has failed already
                local.client("sagemaker").stop_training_job(TrainingJobName=body["TrainingJobName"])
    assert memory_mb(local) - before < 300
    answers(local)


@pytest.mark.parametrize("target", TARGETS)
def test_bodies_of_wrong_form_are_refused(bench, target):
    for body in BODIES[TARGETS.index(target) % 3 :: 3]:
        status, text = sagemaker(bench.local, target, body)
        assert status in (200, 400), (target, body[:40], status, text[-300:])
    answers(bench.local)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Length": "-5"}, 411),
        ({"Content-Length": "abc"}, 411),
        ({"Transfer-Encoding": "chunked"}, 411),
        ({"Content-Length": str(10**12)}, 413),
        ({"Content-Length": "9" * 5000}, 413),
        ({"Content-Encoding": "gzip", "Content-Length": "0"}, 415),
        ({"Host": ""}, 403),
        ({"Host": "[::1]"}, 403),
        ({"Host": "evil.example:80"}, 403),
    ],
)
def test_headers_that_would_exhaust_memory_are_refused(local, headers, status):
    assert call(local, headers={"X-Amz-Target": "SageMaker.ListTrainingJobs", **headers})[0] == status
    answers(local)


def test_compressed_requests_are_not_unpacked(local):
    before = memory_mb(local)
    bomb = gzip.compress(b" " * 200_000_000)
    headers = {"X-Amz-Target": "SageMaker.ListTrainingJobs", "Content-Encoding": "gzip"}
    assert call(local, body=bomb, headers=headers)[0] == 415
    assert memory_mb(local) - before < 100


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/moto-api/reset"), ("GET", "/moto-api/"), ("POST", "/moto-api/config"), ("GET", "/moto-api/data.json")],
)
def test_motos_own_interface_is_closed(local, method, path):
    assert call(local, method, path)[0] == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/%00"), ("GET", "/../../etc/passwd"), ("PUT", f"/{'a' * 70_000}"), ("BREW", "/"), ("GET", "/%ff%fe")],
)
def test_strange_paths_are_answered(local, method, path):
    assert 200 <= call(local, method, path)[0] < 500
    answers(local)


def test_garbage_and_stalled_connections_do_not_block_others(local):
    port = int(local.url.rpartition(":")[2])
    stalled = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
    try:
        for number, connection in enumerate(stalled):
            connection.sendall(
                [b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\n", b"\x16\x03\x01\x02", b"GET"][number % 3]
            )
        answers(local)
    finally:
        for connection in stalled:
            connection.close()
    answers(local)


def test_keys_of_a_channel_cannot_leave_its_folder(bench):
    bucket = bench.local.bucket
    bench.s3.put_object(Bucket=bucket, Key="escaping/../../../../../../outside", Body=b"x")
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"s3://{bucket}/escaping/"}}
    job = bench.run("print(1)", InputDataConfig=[{"ChannelName": "train", "DataSource": source}])
    assert job["TrainingJobStatus"] == "Failed"
    assert "outside its folder" in job["FailureReason"]


def test_jobs_created_at_once_do_not_mix(bench):
    script = (
        "import os\nopen(os.path.join(os.environ['SM_MODEL_DIR'], 'name'), 'w').write(os.environ['TRAINING_JOB_NAME'])"
    )
    requests = [bench.request(script) for _ in range(8)]
    threads = [threading.Thread(target=bench.sagemaker.create_training_job, kwargs=request) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for request in requests:
        name = request["TrainingJobName"]
        job = bench.wait(name, 120)
        assert job["TrainingJobStatus"] == "Completed", job["FailureReason"]
        assert bench.archive(job["ModelArtifacts"]["S3ModelArtifacts"]) == {"name": name.encode()}
