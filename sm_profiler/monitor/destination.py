"""Where files are uploaded to: an S3 prefix, with the job's key."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from sm_profiler.errors import ProfilerError

WHOLE_BYTES = 32 << 20  # larger files go up in parts
CONNECT_SECONDS, READ_SECONDS = 5, 30
MISSING = {"NoSuchKey", "404", "NotFound", "403", "AccessDenied"}


class Destination(Protocol):
    """Takes files under a key.  Each call is one attempt: whoever calls has the patience."""

    uri: str

    def put(self, key: str, what: bytes | Path) -> None:
        """Store bytes, or a file, at once and whole.

        Raises:
            FileNotFoundError: the file is gone.
            Exception: it did not work this time.
        """

    def get(self, key: str) -> bytes | None:
        """What is stored there; None where nothing is, or nothing may be seen.

        Raises:
            Exception: it did not work this time.
        """


class S3Destination:
    """An S3 prefix.

    Args:
        uri: `s3://bucket/prefix`.
        kms_key_id: objects are encrypted with this key; without one the bucket's own settings decide.
        client: a boto3 S3 client; by default one that answers or fails within half a minute, and does not retry.

    Raises:
        ProfilerError: boto3 is not installed, or the URI is none.
    """

    def __init__(self, uri: str, kms_key_id: str | None = None, client: Any = None) -> None:
        parts = urlsplit(uri)
        if parts.scheme != "s3" or not parts.netloc:
            raise ProfilerError(f"{uri}: not an s3:// URI")
        self.uri = uri.rstrip("/")
        self._bucket, self._prefix = parts.netloc, parts.path.strip("/")
        self._client = client if client is not None else make_client()
        self._extra = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key_id} if kms_key_id else {}

    def put(self, key: str, what: bytes | Path) -> None:
        """Store bytes, or a file."""
        where = {"Bucket": self._bucket, "Key": self._key(key)}
        if isinstance(what, bytes):
            self._client.put_object(**where, Body=what, **self._extra)
        elif what.stat().st_size > WHOLE_BYTES:
            self._client.upload_file(str(what), *where.values(), ExtraArgs=self._extra)
        else:
            with what.open("rb") as file:
                self._client.put_object(**where, Body=file, **self._extra)

    def get(self, key: str) -> bytes | None:
        """What is stored there, or None."""
        from botocore.exceptions import ClientError  # noqa: PLC0415 - whoever has a client has botocore

        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key(key))
        except ClientError as error:
            if str(error.response.get("Error", {}).get("Code")) in MISSING:
                return None
            raise
        data: bytes = answer["Body"].read()
        return data

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key


def make_client() -> Any:
    """A boto3 S3 client that does not wait long.

    Raises:
        ProfilerError: boto3 is not installed.
    """
    try:
        import boto3  # noqa: PLC0415 - not every container has it, and the sampler does without
        from botocore.client import Config  # noqa: PLC0415 - comes with boto3
    except ImportError:
        raise ProfilerError("uploads need boto3: pip install 'sm-profiler[aws]'") from None
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": 1},
    )
    client = boto3.client("s3", config=config)
    if (urlsplit(client.meta.endpoint_url).hostname or "").endswith(("amazonaws.com", "amazonaws.com.cn")):
        return client
    # Other endpoints seldom have a host name for every bucket.
    return boto3.client("s3", config=config.merge(Config(s3={"addressing_style": "path"})))
