"""Files under a folder or an S3 prefix, behind one small protocol; boto3 is loaded only when an S3 URI is opened."""

from __future__ import annotations

import os
from typing import Any

from sm_profiler.errors import SourceError
from sm_profiler.storage.base import FileInfo, MissingFileError, Storage
from sm_profiler.storage.download import read_all
from sm_profiler.storage.local import LocalStorage

__all__ = ["FileInfo", "LocalStorage", "MissingFileError", "Storage", "open_storage", "read_all"]


def open_storage(
    where: str | os.PathLike[str],
    *,
    client: Any = None,
    region: str | None = None,
    requester_pays: bool | None = None,
) -> Storage:
    """The storage behind a folder's path, a `file://` URI or an `s3://bucket/prefix` URI.

    Args:
        where: the folder or URI; nothing is read yet, and it need not exist.
        client: a boto3 S3 client to use instead of one made from the environment.
        region: the region of the S3 client that is made; default: boto3's own.
        requester_pays: agree to pay for requests to a requester-pays bucket; default: whether the environment variable
            SM_PROFILER_REQUESTER_PAYS is 1.

    Raises:
        SourceError: the URI cannot be understood, or boto3 is not installed.
    """
    text = os.fspath(where)
    scheme, separator, rest = text.partition("://")
    if not separator or scheme == "file":
        return LocalStorage(rest if separator else text)
    if scheme not in {"s3", "s3a", "s3n"}:
        raise SourceError(f"{text}: only folders and s3:// URIs can be opened")
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise SourceError(f"{text}: the bucket's name is missing")
    from sm_profiler.storage.s3 import S3Storage  # noqa: PLC0415 - boto3 takes a third of a second to load

    if requester_pays is None:
        requester_pays = os.environ.get("SM_PROFILER_REQUESTER_PAYS") == "1"
    return S3Storage(bucket, prefix, client=client, region=region, requester_pays=requester_pays)
