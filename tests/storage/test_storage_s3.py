import re
import socket
import threading
import time

import botocore.session
import pytest
from botocore.exceptions import ClientError, NoCredentialsError, TokenRetrievalError, UnauthorizedSSOTokenError

from sm_profiler.errors import SourceError
from sm_profiler.storage import AccessDeniedError, MissingFileError, base, open_storage, read_all, s3
from sm_profiler.storage.s3 import (
    ATTEMPTS,
    CONNECT_SECONDS,
    READ_SECONDS,
    S3Storage,
    create_client,
    explain,
    is_aws,
    reason_of,
)


@pytest.fixture
def pauses(monkeypatch):
    """Record the pauses between retries instead of waiting."""
    noted = []
    made = S3Storage.__init__

    def without_waiting(self, *args, **kwargs):
        made(self, *args, **{"sleep": noted.append} | kwargs)

    monkeypatch.setattr(S3Storage, "__init__", without_waiting)
    return noted


@pytest.fixture
def storage(endpoint, pauses):
    storage = open_storage("s3://jobs/job-1/profiler-output")
    for key in ("system/b", "system/a", "framework/c", "system/sub/d"):
        storage.write(key, key.encode() * 100)
    endpoint.client().put_object(Bucket="jobs", Key="job-1/profiler-output-of-another/x", Body=b"1")
    endpoint.client().put_object(Bucket="jobs", Key="job-1/profiler-output/empty-folder/", Body=b"")
    endpoint.client().put_object(Bucket="jobs", Key="job-2/y", Body=b"1")
    return storage


def test_lists_only_its_prefix(storage):
    assert storage.uri == "s3://jobs/job-1/profiler-output"
    assert [info.key for info in storage.list()] == ["framework/c", "system/a", "system/b", "system/sub/d"]
    assert [info.key for info in storage.list("system/", "system/a")] == ["system/b", "system/sub/d"]
    info = next(storage.list("system/a"))
    assert (info.size, abs(info.mtime - time.time()) < 60, bool(info.etag)) == (800, True, True)


def test_lists_page_by_page(endpoint, pauses):
    client = endpoint.client()
    for number in range(25):
        client.put_object(Bucket="jobs", Key=f"many/{number:03}", Body=b"x")

    class SmallPages:
        def __getattr__(self, name):
            return getattr(client, name)

        def list_objects_v2(self, **request):
            return client.list_objects_v2(**request, MaxKeys=4)

    endpoint.requests.clear()
    keys = [info.key for info in open_storage("s3://jobs/many", client=SmallPages()).list(start_after="003")]
    assert keys == [f"{number:03}" for number in range(4, 25)]
    assert len(endpoint.requests) == 6


def test_reads_whole_and_in_part(storage):
    assert storage.read("system/a") == b"system/a" * 100
    assert storage.read("system/a", 8, 14) == b"system"
    assert storage.read("system/a", 792) == b"system/a"
    assert storage.read("system/a", 5, 5) == b""
    assert storage.exists("system/a")
    assert not storage.exists("system/z")
    with pytest.raises(MissingFileError, match="s3://jobs/job-1/profiler-output/system/z does not exist"):
        storage.read("system/z")


@pytest.mark.parametrize(
    ("status", "code"), [("503 Slow Down", "SlowDown"), ("500 Oops", "InternalError"), ("429 Too Many", "Other")]
)
def test_retries_with_growing_pauses(endpoint, storage, pauses, status, code):
    endpoint.fail(status, code, times=4)
    assert storage.read("system/a") == b"system/a" * 100
    assert len(pauses) == 4
    assert all(0.125 * 2**n <= pause <= 0.375 * 2**n for n, pause in enumerate(pauses))
    assert len(set(pauses)) == 4  # they vary


def test_fails_after_the_last_attempt(endpoint, storage, pauses):
    endpoint.fail("503 Slow Down", "SlowDown")
    endpoint.requests.clear()
    with pytest.raises(SourceError, match="SlowDown") as caught:
        list(storage.list())
    assert "\n" not in str(caught.value)
    assert len(endpoint.requests) == ATTEMPTS
    assert len(pauses) == ATTEMPTS - 1


def test_truncated_bodies_are_fetched_again(endpoint, storage, pauses):
    cut = [3]

    def rule(method, path, _query):
        if method == "GET" and path.endswith("system/a"):
            cut[0] -= 1
            return (lambda body: body[: len(body) // 2]) if cut[0] >= 0 else None
        return None

    endpoint.rules.append(rule)
    assert storage.read("system/a") == b"system/a" * 100
    assert len(pauses) == 3


@pytest.mark.parametrize("code", ["NoSuchBucket", "404"])
def test_an_upload_to_a_missing_bucket_names_the_bucket_and_the_reason(code):
    """The object's long address was all that was left of the line."""
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 404}}
    error = explain(ClientError(answer, "PutObject"), "s3://jobs/a/system/training_job_end.ts", "write")
    assert str(error) == "s3://jobs: the bucket does not exist: check its name, or create it"


KEY = "arn:aws:kms:us-east-1:1:key/abc"
ROLE = "User: arn:aws:sts::1:assumed-role/r/S is not authorized to perform:"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            f"{ROLE} kms:GenerateDataKey on resource: {KEY} because no identity-based policy allows the action",
            f" (not authorized: kms:GenerateDataKey on {KEY})",
        ),
        (
            f'{ROLE} s3:PutObject on resource: "arn:aws:s3:::jobs/a" because no session policy allows the action',
            " (not authorized: s3:PutObject on arn:aws:s3:::jobs/a)",
        ),
        (f"{ROLE} kms:Decrypt on this resource", " (not authorized: kms:Decrypt)"),
        (f"{ROLE} s3:PutObject on resource: {KEY}.", f" (not authorized: s3:PutObject on {KEY})"),
        ("Access Denied", ""),
    ],
)
def test_a_denial_names_what_aws_does(message, said):
    """A role that may write to the bucket, but not use its key, was reported as one without access to the bucket."""
    answer = {"Error": {"Code": "AccessDenied", "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    error = explain(ClientError(answer, "PutObject"), "s3://jobs/a", "write")
    assert str(error) == f"s3://jobs/a: access denied: these credentials may not write it{said}"
    assert isinstance(error, AccessDeniedError)


@pytest.mark.parametrize(("status", "code", "said"), [
    ("404 Not Found", "NoSuchBucket", "the bucket does not exist"),
    ("403 Forbidden", "AccessDenied", "access denied"),
    ("400 Bad Request", "ExpiredToken", r"credentials have expired: sign in again \(aws sso login\)"),
    ("403 Forbidden", "InvalidAccessKeyId", "access key does not exist"),
    ("403 Forbidden", "SignatureDoesNotMatch", "secret key is wrong"),
])  # fmt: skip
def test_errors_explain_the_cause(endpoint, storage, pauses, status, code, said):  # fixtures and cases
    endpoint.fail(status, code)
    for call in (lambda: list(storage.list()), lambda: storage.read("system/a")):
        with pytest.raises(SourceError, match=said) as caught:
            call()
        assert re.fullmatch(r"s3://jobs/job-1/profiler-output/\S*: [^\n]+", str(caught.value))
    assert pauses == []  # waiting would not help


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ClientError({"Error": {"Code": "ExpiredTokenException", "Message": "x"}}, "DescribeTrainingJob"),
            "expired: sign in",
        ),
        (UnauthorizedSSOTokenError(), "expired: sign in again"),
        (
            TokenRetrievalError(provider="sso", error_msg="Token has expired and refresh failed"),
            "expired: sign in again",
        ),
        (NoCredentialsError(), "no AWS credentials were found: sign in"),
        (ClientError({"Error": {"Code": "UnrecognizedClientException"}}, "x"), "does not accept these credentials"),
        (ClientError({"Error": {"Code": "ValidationException", "Message": "no\nsuch job"}}, "x"), "^no such job$"),
    ],
)
def test_credentials_have_one_wording_with_what_to_do(error, said):
    assert re.search(said, reason_of(error))


def test_a_wrong_region_is_reported_with_the_right_one(endpoint, storage):
    endpoint.fail("400 Bad Request", "AuthorizationHeaderMalformed", extra="<Region>eu-west-1</Region>")
    with pytest.raises(SourceError, match="another region, eu-west-1: set AWS_REGION=eu-west-1"):
        list(storage.list())


def test_missing_bucket(endpoint, pauses):
    with pytest.raises(SourceError, match="the bucket does not exist"):
        list(open_storage("s3://no-such-bucket-here/x").list())


def test_no_credentials(endpoint, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(SourceError, match="no AWS credentials"):
        list(open_storage("s3://jobs/x").list())


def test_unreachable_endpoint(endpoint, monkeypatch, pauses):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(SourceError, match=r"127\.0\.0\.1:9"):
        list(open_storage("s3://jobs/x").list())
    assert len(pauses) == ATTEMPTS - 1


def test_requester_pays_only_on_request(endpoint, pauses, monkeypatch):
    endpoint.client().put_object(Bucket="jobs", Key="x/y", Body=b"1")
    for pays in (False, True):
        monkeypatch.setenv("SM_PROFILER_REQUESTER_PAYS", str(int(pays)))
        endpoint.headers.clear()
        storage = open_storage("s3://jobs/x")
        assert [storage.read(info.key) for info in storage.list()] == [b"1"]
        assert [headers.get("HTTP_X_AMZ_REQUEST_PAYER") for headers in endpoint.headers] == [
            "requester" if pays else None
        ] * 2


def test_an_endpoint_cannot_add_keys_outside_the_prefix(endpoint, storage):
    class Lying:
        def list_objects_v2(self, **_request):
            now = endpoint.client().list_objects_v2(Bucket="jobs")["Contents"][0]["LastModified"]
            keys = ["../etc/passwd", "job-1/profiler-output/ok", "/abs", "job-2/y"]
            return {"Contents": [{"Key": key, "Size": 1, "LastModified": now, "ETag": ""} for key in keys]}

    assert [info.key for info in S3Storage("jobs", "job-1/profiler-output", client=Lying()).list()] == ["ok"]


LISTED = """<ListBucketResult><Name>jobs</Name><IsTruncated>{}</IsTruncated>{}
<Contents><Key>x/a</Key></Contents></ListBucketResult>"""


def test_a_listing_that_repeats_itself_ends_in_one_line(endpoint, storage):
    page = LISTED.format("true", "<NextContinuationToken>again</NextContinuationToken>")
    endpoint.rules.append(lambda *_: ("200 OK", page))
    with pytest.raises(SourceError, match="same page of the listing again"):
        list(storage.list())


def test_a_listing_without_sizes_and_times_is_read(endpoint, storage):
    endpoint.rules.append(lambda *_: ("200 OK", LISTED.format("false", "")))
    (info,) = S3Storage("jobs", "x").list()
    assert (info.key, info.size, info.mtime) == ("a", 0, 0.0)


def test_an_answer_larger_than_requested_is_not_read(endpoint, storage, monkeypatch):
    endpoint.rules.append(lambda *_: ("206 Partial Content", "x" * 1000))
    with pytest.raises(SourceError, match="1000 bytes instead of at most 10"):
        storage.read("a", 0, 10)
    monkeypatch.setattr(s3, "MAX_OBJECT_BYTES", 100)
    with pytest.raises(SourceError, match="1000 bytes instead of at most 100"):
        storage.read("a")


def test_reads_in_parallel_in_order_with_bounded_memory(endpoint, storage, monkeypatch):
    for number in range(40):
        storage.write(f"many/{number:02}", bytes([number]) * 1000)
    active, most, lock = [0], [0], threading.Lock()
    real = S3Storage.read

    def counted(self, *args):
        with lock:
            active[0] += 1
            most[0] = max(most[0], active[0])
        time.sleep(0.01)
        try:
            return real(self, *args)
        finally:
            with lock:
                active[0] -= 1

    monkeypatch.setattr(S3Storage, "read", counted)
    infos = list(storage.list("many/"))
    assert [data[0] for _, data in read_all(storage, infos)] == list(range(40))
    assert 2 <= most[0] <= storage.parallel_reads
    most[0] = 0
    assert len(list(read_all(storage, infos, ahead_bytes=3000))) == 40
    assert most[0] <= 3


def test_large_objects_are_read_in_ranges(endpoint, storage, monkeypatch):
    monkeypatch.setattr(base, "RANGE_BYTES", 1000)
    data = bytes(range(256)) * 40
    storage.write("large", data)
    endpoint.requests.clear()
    ((_, read),) = read_all(storage, list(storage.list("large")))
    assert read == data
    assert sum(method == "GET" and "large" in path for method, path, _ in endpoint.requests) == 11


def test_files_deleted_meanwhile_are_reported_as_missing(endpoint, storage):
    infos = list(storage.list("system/"))
    endpoint.client().delete_object(Bucket="jobs", Key="job-1/profiler-output/system/a")
    read = {info.key: data for info, data in read_all(storage, infos)}
    assert isinstance(read.pop("system/a"), MissingFileError)
    assert all(isinstance(data, bytes) for data in read.values())


@pytest.mark.parametrize("uri", ["s3://", "https://x/y", "s3:///key"])
def test_rejects_invalid_uris(uri):
    with pytest.raises(SourceError):
        open_storage(uri)


def test_other_endpoints_get_path_style(endpoint):
    assert create_client().meta.config.s3["addressing_style"] == "path"


def test_endpoints_of_all_partitions_are_recognized():
    partitions = botocore.session.get_session().get_data("partitions")["partitions"]
    for partition in partitions:
        region = next(iter(partition["regions"]))
        for suffix in (partition["outputs"]["dnsSuffix"], partition["outputs"]["dualStackDnsSuffix"]):
            assert is_aws(f"https://s3.{region}.{suffix}"), suffix
    assert not is_aws("https://s3.myamazonaws.com")
    assert not is_aws("http://127.0.0.1:9000")


@pytest.mark.parametrize("region", ["us-east-1", "cn-north-1", "us-gov-west-1", "us-iso-east-1"])
def test_aws_endpoints_get_a_host_name_per_bucket(monkeypatch, region):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    config = create_client(region_name=region).meta.config
    assert (config.s3 or {}).get("addressing_style") != "path"


def test_readers_have_timeouts_and_leave_retries_to_the_storage(endpoint):
    config = open_storage("s3://jobs/x")._client.meta.config
    assert (config.connect_timeout, config.read_timeout) == (CONNECT_SECONDS, READ_SECONDS) == (5, 30)
    assert config.retries["total_max_attempts"] == 1


def test_an_endpoint_that_accepts_and_never_answers_ends_in_one_line(endpoint, monkeypatch, pauses):
    monkeypatch.setattr(s3, "READ_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(SourceError, match=r"[Tt]imeout|timed out") as caught:
            list(open_storage("s3://jobs/x").list())
    assert time.monotonic() - began < 10
    assert "\n" not in str(caught.value)
    assert len(pauses) == ATTEMPTS - 1
