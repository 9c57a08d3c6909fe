"""Uploads to moto's S3 server, with faults put between client and server."""

import sys

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.monitor.uploader import Uploader, open_destination
from sm_profiler.storage import MissingFileError
from sm_profiler.storage import s3 as s3_storage
from sm_profiler.storage.s3 import create_client

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


def trace(number):
    return f"framework/pevents/2026112111/{1795261080000000 + number}_0-algo-1_pythontimeline.json"


def write(root, key, data):
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize(
    "kind",
    [(503, "SlowDown"), (500, "InternalError"), (403, "AccessDenied"), (404, "NoSuchBucket"), "refused", "timeout"],
    ids=str,
)
def test_files_are_uploaded_after_any_failure_of_s3_is_over(tmp_path, s3, kind):
    write(tmp_path, MINUTE, b"{}\n")
    write(tmp_path, "framework/pevents/2026112111/1_0-algo-1_pythontimeline.json", b"[]")
    client = create_client()
    give = fault(kind)
    client.meta.events.register("before-send.s3", give)
    now = [0.0]
    uploader = Uploader(
        tmp_path, open_destination(URI, client=client), lambda: now[0], lambda s: now.__setitem__(0, now[0] + s)
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


def test_uploads_succeed_if_every_second_request_fails(tmp_path, s3):
    for number in range(40):
        write(tmp_path, trace(number), b"x" * number)
    client = create_client()
    turn = iter(range(10**6))
    client.meta.events.register("before-send.s3", lambda **_: answer(503, "SlowDown") if next(turn) % 2 else None)
    now = [0.0]
    uploader = Uploader(
        tmp_path, open_destination(URI, client=client), lambda: now[0], lambda s: now.__setitem__(0, now[0] + s)
    )
    assert uploader.drain(100.0)
    assert [len(s3.get_object(Bucket="profiles", Key=key)["Body"].read()) for key in keys(s3)] == list(range(40))
    client.close()


def test_the_kms_key_encrypts_every_object(tmp_path, s3, monkeypatch):
    monkeypatch.setattr(s3_storage, "MULTIPART_BYTES", 1000)
    write(tmp_path, trace(1), b"x" * 2000)
    write(tmp_path, trace(2), b"x")
    client = create_client()
    uploader = Uploader(tmp_path, open_destination(URI, "arn:aws:kms:us-east-1:123456789012:key/k", client))
    assert uploader.drain(uploader.clock() + 30)
    assert uploader.put_markers()
    for key in keys(s3):
        head = s3.head_object(Bucket="profiles", Key=key)
        assert (head["ServerSideEncryption"], head["SSEKMSKeyId"][-5:]) == ("aws:kms", "key/k"), key
    client.close()


def test_without_a_kms_key_the_bucket_decides(tmp_path, s3):
    write(tmp_path, trace(2), b"x")
    client = create_client()
    uploader = Uploader(tmp_path, open_destination(URI, client=client))
    assert uploader.drain(uploader.clock() + 30)
    assert "SSEKMSKeyId" not in s3.head_object(Bucket="profiles", Key=keys(s3)[0])
    client.close()


def test_a_missing_object_raises_its_own_error(s3):
    client = create_client()
    with pytest.raises(MissingFileError):
        open_destination(URI, client=client).read("nothing")
    client.close()


@pytest.mark.parametrize("uri", ["/tmp/x", "https://bucket/x", "s3://"])
def test_rejects_destinations_outside_s3(uri):
    with pytest.raises(ProfilerError, match="s3://"):
        open_destination(uri, client=object())


def test_missing_boto3_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    for name in ("sm_profiler.storage.s3", "sm_profiler.storage.s3"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ProfilerError, match=r"sm-profiler\[aws\]") as caught:
        open_destination(URI)
    assert not isinstance(caught.value, SourceError)  # retrying is useless


def test_the_client_has_short_timeouts_and_no_retries(aws):
    client = create_client()
    config = client.meta.config
    assert (config.retries["total_max_attempts"], config.connect_timeout) == (1, 5)
    assert config.read_timeout <= 30
    client.close()
    assert boto3  # the real one
