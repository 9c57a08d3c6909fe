"""Uploads to moto's S3 server, with faults put between client and server."""

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from sm_profiler.errors import ProfilerError
from sm_profiler.monitor import destination
from sm_profiler.monitor.destination import S3Destination
from sm_profiler.monitor.uploader import Uploader

URI = "s3://profiles/out/job-1/profiler-output"
MINUTE = "system/incremental/2026112111/1795261080.algo-1.json"


class Body:
    def __init__(self, data):
        self.data = data

    def stream(self, **_):
        return iter([self.data])

    def read(self):
        return self.data


def answer(status, code):
    return AWSResponse("http://x", status, {}, Body(f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode()))


def fault(kind):
    def give(request, **_):
        if kind == "refused":
            raise EndpointConnectionError(endpoint_url=request.url)
        if kind == "timeout":
            raise ReadTimeoutError(endpoint_url=request.url)
        return answer(*kind)

    return give


def keys(s3):
    return sorted(item["Key"] for item in s3.list_objects_v2(Bucket="profiles").get("Contents", ()))


def write(root, key, data):
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize(
    "kind",
    [(503, "SlowDown"), (500, "InternalError"), (403, "AccessDenied"), (404, "NoSuchBucket"), "refused", "timeout"],
    ids=str,
)
def test_whatever_s3_says_files_go_up_once_it_is_over(tmp_path, s3, kind):
    write(tmp_path, MINUTE, b"{}\n")
    write(tmp_path, "framework/pevents/2026112111/1_0-algo-1_pythontimeline.json", b"[]")
    client = destination.make_client()
    give = fault(kind)
    client.meta.events.register("before-send.s3", give)
    now = [0.0]
    uploader = Uploader(
        tmp_path, S3Destination(URI, client=client), lambda: now[0], lambda s: now.__setitem__(0, now[0] + s)
    )
    assert not uploader.drain(20.0)
    assert uploader.failures >= 2
    assert uploader.error
    assert "\n" not in uploader.error
    client.meta.events.unregister("before-send.s3", give)
    assert uploader.drain(40.0)
    assert uploader.put_markers()
    assert len(keys(s3)) == 4
    assert s3.get_object(Bucket="profiles", Key=f"out/job-1/profiler-output/{MINUTE}")["Body"].read() == b"{}\n"
    client.close()


def test_every_second_request_fails(tmp_path, s3):
    for number in range(40):
        write(tmp_path, f"a/{number:03}", b"x" * number)
    client = destination.make_client()
    turn = iter(range(10**6))
    client.meta.events.register("before-send.s3", lambda **_: answer(503, "SlowDown") if next(turn) % 2 else None)
    now = [0.0]
    uploader = Uploader(
        tmp_path, S3Destination(URI, client=client), lambda: now[0], lambda s: now.__setitem__(0, now[0] + s)
    )
    assert uploader.drain(100.0)
    assert [len(s3.get_object(Bucket="profiles", Key=key)["Body"].read()) for key in keys(s3)] == list(range(40))
    client.close()


def test_the_key_is_used_for_every_object_the_large_ones_too(tmp_path, s3, monkeypatch):
    monkeypatch.setattr(destination, "WHOLE_BYTES", 1000)
    write(tmp_path, "a/large", b"x" * 2000)
    write(tmp_path, "a/small", b"x")
    client = destination.make_client()
    uploader = Uploader(tmp_path, S3Destination(URI, "arn:aws:kms:us-east-1:123456789012:key/k", client))
    assert uploader.drain(uploader.clock() + 30)
    assert uploader.put_markers()
    for key in keys(s3):
        head = s3.head_object(Bucket="profiles", Key=key)
        assert (head["ServerSideEncryption"], head["SSEKMSKeyId"][-5:]) == ("aws:kms", "key/k"), key
    client.close()


def test_without_a_key_the_bucket_decides(tmp_path, s3):
    write(tmp_path, "a/small", b"x")
    client = destination.make_client()
    uploader = Uploader(tmp_path, S3Destination(URI, client=client))
    assert uploader.drain(uploader.clock() + 30)
    assert "SSEKMSKeyId" not in s3.head_object(Bucket="profiles", Key=keys(s3)[0])
    client.close()


def test_what_is_not_there_is_none(s3):
    client = destination.make_client()
    assert S3Destination(URI, client=client).get("nothing") is None
    client.close()


@pytest.mark.parametrize("uri", ["/tmp/x", "https://bucket/x", "s3://"])
def test_only_s3(uri):
    with pytest.raises(ProfilerError, match="s3://"):
        S3Destination(uri, client=object())


def test_missing_boto3_is_one_line(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    with pytest.raises(ProfilerError, match=r"sm-profiler\[aws\]"):
        destination.make_client()


def test_the_client_neither_retries_nor_waits_long(aws):
    client = destination.make_client()
    config = client.meta.config
    assert (config.retries["total_max_attempts"], config.connect_timeout) == (1, 5)
    assert config.read_timeout <= 30
    client.close()
    assert boto3  # the real one
