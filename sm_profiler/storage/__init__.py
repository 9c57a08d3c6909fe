"""Files in a folder or under an S3 prefix, behind one protocol; boto3 is loaded when an S3 URI is opened."""

from __future__ import annotations

import os
import re
from typing import Any

from sm_profiler.errors import SourceError
from sm_profiler.settings import KMS_KEY, REQUESTER_PAYS
from sm_profiler.storage.base import AccessDeniedError, FileInfo, LocalStorage, MissingFileError, Storage, read_all

__all__ = [
    "AccessDeniedError",
    "FileInfo",
    "LocalStorage",
    "MissingFileError",
    "Storage",
    "open_storage",
    "read_all",
    "s3_uri",
]


_S3_TYPO = r"(?i:s3[an]?):/*(?=[^/])"
_S3_ADDRESS = r"https?://(?:([a-z0-9.-]+)\.)?s3[.-](?:[a-z0-9-]+\.)*amazonaws\.com(?:\.cn)?/([^?]+)"


def s3_uri(text: str) -> str:
    """Return the s3:// URI that a misspelt one, or the address of an object or prefix, means; "" for other texts."""
    if address := re.match(_S3_ADDRESS, text):
        return f"s3://{'/'.join(filter(None, address.groups()))}"
    typo = re.match(_S3_TYPO, text)
    return f"s3://{text[typo.end() :]}" if typo else ""


def open_storage(where: str | os.PathLike[str], *, client: Any = None) -> Storage:
    """Open the storage at a folder's path, a `file://` URI or an `s3://bucket/prefix` URI.

    Args:
        where: the folder or URI; it need not exist, and nothing is read yet.
        client: a boto3 S3 client; default: one created from the environment.

    Objects are encrypted with the KMS key of the environment variable SM_PROFILER_KMS_KEY, if it is set, and requests to a
    requester-pays bucket are paid for with SM_PROFILER_REQUESTER_PAYS.

    Raises:
        SourceError: the URI is not valid, or boto3 is not installed.
    """
    text = os.fspath(where)
    scheme, separator, rest = text.partition("://")
    if not separator or scheme == "file":
        return LocalStorage(rest if separator else text)
    if scheme not in {"s3", "s3a", "s3n"}:
        hint = f"; for a bucket, write {meant}" if (meant := s3_uri(text)) else ""
        raise SourceError(f"{text.partition('?')[0]}: not a folder or s3:// URI{hint}")  # no signature of an address
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise SourceError(f"{text}: the bucket name is missing")
    from sm_profiler.storage.s3 import S3Storage  # loading boto3 takes a third of a second

    return S3Storage(bucket, prefix, client=client, requester_pays=REQUESTER_PAYS.read(), kms_key_id=KMS_KEY.read())
