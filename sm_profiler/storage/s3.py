"""Files below an S3 prefix, through boto3."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sm_profiler.errors import SourceError
from sm_profiler.storage.base import FileInfo, MissingFileError

try:
    import boto3
    from botocore.client import Config
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        FlexibleChecksumError,
        HTTPClientError,
        IncompleteReadError,
        NoCredentialsError,
    )
    from botocore.exceptions import ConnectionError as BotoConnectionError
except ImportError as missing:  # pragma: no cover - this module is only imported for an s3:// URI
    raise SourceError("s3:// URIs need boto3: pip install 'sm-profiler[aws]'") from missing

Result = TypeVar("Result")

ATTEMPTS = 6
LONGEST_PAUSE_S = 20.0
PARALLEL = 16
TRANSIENT = frozenset({
    "500", "502", "503", "504", "InternalError", "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException",
    "RequestTimeout", "RequestTimeTooSkewed", "RequestLimitExceeded", "BandwidthLimitExceeded", "TooManyRequests",
})  # fmt: skip
BROKEN = (
    HTTPClientError,
    BotoConnectionError,
    IncompleteReadError,
    FlexibleChecksumError,
    ConnectionError,
    TimeoutError,
)
EXPLANATIONS = {
    "NoSuchBucket": "the bucket does not exist",
    "AccessDenied": "access denied: these credentials may not read it",
    "403": "access denied: these credentials may not read it",
    "AllAccessDisabled": "access denied: the bucket is disabled",
    "PermanentRedirect": "the bucket is in another region",
    "301": "the bucket is in another region",
    "AuthorizationHeaderMalformed": "the bucket is in another region",
    "IllegalLocationConstraintException": "the bucket is in another region",
    "ExpiredToken": "the AWS credentials have expired",
    "ExpiredTokenException": "the AWS credentials have expired",
    "RequestExpired": "the AWS credentials have expired",
    "InvalidToken": "the AWS session token is not valid",
    "TokenRefreshRequired": "the AWS credentials have expired",
    "InvalidAccessKeyId": "the AWS access key does not exist",
    "SignatureDoesNotMatch": "the AWS secret key is wrong",
    "InvalidBucketName": "that is no valid bucket name",
}


class S3Storage:
    """The objects below a prefix of a bucket.

    Safe for several threads.  Throttling, 5xx answers, broken connections and truncated bodies are tried again
    `ATTEMPTS` times, with pauses that double and vary.
    """

    parallel_reads = PARALLEL

    def __init__(  # noqa: PLR0913 - keyword arguments, one an independent choice
        self,
        bucket: str,
        prefix: str = "",
        *,
        client: Any = None,
        region: str | None = None,
        requester_pays: bool = False,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.bucket = bucket
        self.prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._payer = {"RequestPayer": "requester"} if requester_pays else {}
        self._sleep = sleep
        self._client = client if client is not None else _make_client(region)

    @property
    def uri(self) -> str:
        """The s3:// URI of the prefix."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[FileInfo]:
        """All objects whose key begins with `prefix` and comes after `start_after`, in the order of their keys."""
        request = {"Bucket": self.bucket, "Prefix": self.prefix + prefix, **self._payer}
        if start_after:
            request["StartAfter"] = self.prefix + start_after
        while True:
            page = self._call(lambda: self._client.list_objects_v2(**request), self.prefix + prefix)
            for item in page.get("Contents", ()):
                key = item["Key"]
                # An endpoint is not believed to keep to the prefix that was asked for; names of folders are no files.
                if key.startswith(self.prefix) and not key.endswith("/"):
                    yield FileInfo(
                        key[len(self.prefix) :], item["Size"], item["LastModified"].timestamp(), item.get("ETag", "")
                    )
            token = page.get("NextContinuationToken")
            if not page.get("IsTruncated") or not token:
                return
            request["ContinuationToken"] = token

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes of an object, from `start` up to and without `end` where they are given."""
        request = {"Bucket": self.bucket, "Key": self.prefix + key, **self._payer}
        if start is not None or end is not None:
            if end is not None and end <= (start or 0):
                return b""
            request["Range"] = f"bytes={start or 0}-{'' if end is None else end - 1}"

        def get() -> bytes:
            answer = self._client.get_object(**request)
            # Not as a context manager: that would hand out the stream below, whose errors are not botocore's.
            with closing(answer["Body"]) as body:
                data: bytes = body.read()
            if len(data) != answer["ContentLength"]:
                raise HTTPClientError(error=f"{len(data)} of {answer['ContentLength']} bytes")
            return data

        return self._call(get, self.prefix + key)

    def write(self, key: str, data: bytes) -> None:
        """Put an object."""
        request = {"Bucket": self.bucket, "Key": self.prefix + key, "Body": data, **self._payer}
        self._call(lambda: self._client.put_object(**request), self.prefix + key)

    def exists(self, key: str) -> bool:
        """Whether there is such an object."""
        request = {"Bucket": self.bucket, "Key": self.prefix + key, **self._payer}
        try:
            self._call(lambda: self._client.head_object(**request), self.prefix + key)
        except MissingFileError:
            return False
        return True

    def _call(self, call: Callable[[], Result], key: str) -> Result:
        pause = 0.25
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return call()
            except ClientError as error:
                code = str(error.response.get("Error", {}).get("Code", ""))
                status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
                if attempt == ATTEMPTS or not (code in TRANSIENT or status in TRANSIENT or status == "429"):
                    raise self._explained(error, code, status, key) from error
            except NoCredentialsError as error:
                raise SourceError(f"s3://{self.bucket}/{key}: no AWS credentials were found") from error
            except BROKEN as error:
                if attempt == ATTEMPTS:
                    raise SourceError(f"s3://{self.bucket}/{key}: {_one_line(error)}") from error
            except (BotoCoreError, ValueError) as error:
                raise SourceError(f"s3://{self.bucket}/{key}: {_one_line(error)}") from error
            self._sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries, guards nothing
            pause = min(2 * pause, LONGEST_PAUSE_S)
        raise AssertionError("the last attempt returns or raises")

    def _explained(self, error: ClientError, code: str, status: str, key: str) -> SourceError:
        where = f"s3://{self.bucket}/{key}"
        if code in {"NoSuchKey", "NotFound", "404"} and code != "NoSuchBucket":
            return MissingFileError(f"{where} does not exist")
        said = EXPLANATIONS.get(code) or EXPLANATIONS.get(status)
        if said is None:
            return SourceError(f"{where}: {_one_line(error)}")
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        region = headers.get("x-amz-bucket-region") or error.response.get("Error", {}).get("Region")
        if "region" in said and region:
            said += f", {region}: set AWS_REGION={region}"
        return SourceError(f"{where}: {said}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _make_client(region: str | None) -> Any:
    # Retries are ours alone (see S3Storage), so botocore's would only multiply them.
    config = Config(retries={"mode": "standard", "total_max_attempts": 1}, max_pool_connections=PARALLEL)
    try:
        client = boto3.client("s3", region_name=region, config=config)
        if (urlsplit(client.meta.endpoint_url).hostname or "").endswith("amazonaws.com"):
            return client
        # Other endpoints seldom have a host name for every bucket.
        return boto3.client("s3", region_name=region, config=config.merge(Config(s3={"addressing_style": "path"})))
    except (BotoCoreError, ValueError) as error:
        raise SourceError(f"no S3 client can be made: {_one_line(error)}") from error
